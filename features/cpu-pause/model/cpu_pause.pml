/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A model of cpu-pause (arch/arm64/kernel/cpu_pause.c) for the model checker spin.
 *
 * One CPU, the initiator, makes all other online CPUs wait in an interrupt handler while
 * it changes page-table entries with break-before-make, then lets them go. Spin tries
 * every order in which the steps below can happen on three CPUs and looks for
 *
 *   - an access to the mapping while its entry is invalid            assert(entry_valid)
 *   - a change that begins while another CPU is not paused           assert(all_paused)
 *   - two initiators at once                                         assert(initiators == 1)
 *   - a deadlock: a CPU that never leaves a pause, a pause that
 *     never completes, a stopper or a lock that is never served      invalid end state
 *   - a pause that fails though every CPU can stop sooner or later   assert(deaf)
 *   - giving up and trying again for ever                            assert(seq < SEQ_LIMIT)
 *
 * How a CPU is modelled
 *
 *   Three contexts can run on a CPU, each a process of its own: thread(), which is what
 *   some task does; kernel_thread(), the CPU's stopper (stop_machine), which preempts the
 *   task; and ipi(), the handler of the pause IPI, which interrupts both. A context's step
 *   can be taken only if nothing that has precedence runs on that CPU. Everything a CPU
 *   does outside the loop in which it is paused is taken to access the mapping.
 *
 *   A busy wait is a statement that can be executed once its condition holds. Every task
 *   has a bounded number of things to do, so a run can be endless only if an initiator
 *   gives up for ever. If none does (SEQ_LIMIT), every run comes to an end; and if no end
 *   state is invalid, every pause that was asked for has completed or failed by then and
 *   every CPU has left. No assumption of fairness is needed for that. A pause fails after
 *   TRIES tries in a row, and does so only if there is a deaf CPU.
 *
 *   Time-outs: up to EARLY of them strike at any moment. Any further one strikes only when
 *   no other step is possible anywhere (spin's "timeout"). After one of the latter kind the
 *   initiator backs off: long enough for every CPU to make one step of its own, if it can.
 *   For those who try once time may run out at any moment, whatever EARLY is.
 *
 *   Memory is sequentially consistent here; the barriers are argued in cpu_pause.c.
 *
 * What the CPUs do, one or more of these with -D (the initiator on CPU 0 is always there):
 *
 *   PAUSE    CPUs 1 and 2 may pause the others too
 *   TRY      CPUs 1 and 2 may try to, once and without sleeping: cpu_pause_try_unmapped()
 *   LOCK     CPU 1 holds a spinlock with interrupts enabled, CPU 2 waits for it without
 *   STOP     CPU 1 uses stop_two_cpus(), CPU 2 uses stop_machine()
 *   HOTPLUG  CPU 1 takes CPU 2 offline and online again
 *   LATE     with HOTPLUG: CPU 1 may give up CPU 2 before that is online
 *   UNDEAD   with HOTPLUG: CPU 1 may go on before CPU 2 is gone
 *   CRASH    the initiator may panic in a pause
 *   DEAF     CPU 1 masks everything and may never unmask it
 *   FORGET   failures may be forgotten before a pause is asked for, if nobody else asks for one
 *   NMI      with any of them: the IPI is a pseudo-NMI, which local_irq_disable() does not
 *            keep out; masking DAIF does
 *
 * Other ways to write the protocol, right or wrong, are chosen with -D too, and
 * test_model.py says what spin finds for each:
 *
 *   NO_FAILING
 *            a pause is tried for ever
 *   NO_GIVE_UP, NO_BACK_OFF, NO_HOTPLUG_LOCK, NO_MUTEX, NO_ABANDON, NO_LOSS
 *            leave out what the name says
 *   NO_NUMBER
 *            a CPU says that it has stopped, not for which pause, and takes that back when it
 *            leaves, for which the initiator waits: a CPU that has read seq, and is late, is
 *            taken to have stopped for a pause that it will not stay for
 *   NO_WAIT_FOR_LEAVING
 *            with NO_NUMBER: the initiator does not wait for that
 *   LEVEL_FLAG
 *            seq is a flag: only 0 and 1
 *   TRY_COUNTS
 *            every failure of an initiator that tries once is counted, as those of the others
 *
 * By hand:  spin -DSTOP -DPAUSES=1 -DEARLY=0 -a cpu_pause.pml &&
 *           gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -b -m100000
 *           spin -DSTOP -DNO_GIVE_UP -t -p -g cpu_pause.pml    (shows the trail of an error)
 */

#define CPUS	3

#ifndef PAUSES
#define PAUSES	2	/* pauses that CPU 0 asks for */
#endif
#ifndef OPS
#define OPS	1	/* things that CPUs 1 and 2 do, each */
#endif
#ifndef EARLY
#define EARLY	1	/* time-outs that strike though waiting would have helped */
#endif
#ifndef SPURIOUS
#define SPURIOUS 0	/* IPIs for someone else on the same vector, such as a backtrace */
#endif

#ifndef TRIES
#define TRIES	4	/* after so many that failed, the pause fails */
#endif

#ifdef LEVEL_FLAG
#define NEXT(s)	(1 - s)
#else
#define NEXT(s)	(s + 1)
#endif
#define SEQ_LIMIT 32	/* 16 attempts, more than any run needs unless it gives up for ever */

/* --- The protocol's variables ---------------------------------------------------- */

byte seq;			/* odd: a pause is requested or in progress */
byte stopped_for[CPUS];		/* by CPU: the value of seq that it has stopped for last */
bool pause_sem;			/* held in each try, and while a CPU comes or goes */
byte failed_tries;		/* in a row, of whichever initiator; protected by pause_sem */
byte asking;			/* how many want a pause, and sleep or try */
bool lost;			/* CPU 2 was given up when it had begun to run, or not gone */

/* --- The CPUs -------------------------------------------------------------------- */

#define UNMASKED	0
#define IRQS_OFF	1	/* local_irq_disable(): lets pseudo-NMIs through */
#define DAIF_MASKED	2	/* lets nothing through */

byte mask[CPUS];
bool alive[CPUS];		/* it executes instructions */
bool online[CPUS];		/* it is in cpu_online_mask; not quite the same */
bool pending[CPUS];		/* an IPI waits to be taken; a second one adds nothing */
bool in_ipi[CPUS];		/* ipi() runs */
bool in_stopper[CPUS];		/* kernel_thread() runs */
bool preempt_off[CPUS];		/* thread() holds a spinlock */

#define THREAD_RUNS(cpu)	(alive[cpu] && !in_ipi[cpu] && !in_stopper[cpu])
#define STOPPER_RUNS(cpu)	(alive[cpu] && !in_ipi[cpu])
#define PREEMPTIBLE(cpu)	(THREAD_RUNS(cpu) && mask[cpu] == UNMASKED && !preempt_off[cpu])

#ifdef NMI
#define TAKES_IPI(cpu)		(alive[cpu] && mask[cpu] != DAIF_MASKED)
#else
#define TAKES_IPI(cpu)		(alive[cpu] && mask[cpu] == UNMASKED)
#endif

/* --- What is observed; the protocol does not use it ------------------------------ */

bool entry_valid = true;	/* false between break and make */
bool paused[CPUS];		/* it is in the loop that waits for the end of a pause */
bool all_paused = true;	/* when the change began, all others were paused */
byte initiators;		/* CPUs that have made seq odd and not yet even */
bool panicked;			/* the initiator has; from there on nothing is promised but to stop */
byte early_time_outs;
bool deaf;			/* CPU 1 has masked everything for good */
bool backing_off;
bool ran[CPUS];			/* it has made a step of its own since the back-off began */

#define RAN(cpu)		(cpu == me || ran[cpu] || !online[cpu])

#define ACCESS			assert(entry_valid || panicked)

/* One step of a context, once the condition holds. */
#define THREAD(condition, action) \
	atomic { THREAD_RUNS(me) && (condition) -> ACCESS; ran[me] = backing_off; action }
#define STOPPER(condition, action) \
	atomic { STOPPER_RUNS(me) && (condition) -> ACCESS; ran[me] = backing_off; action }

/* --- CPU hotplug's lock, a percpu-rwsem: a waiting writer keeps new readers out --- */

byte cpus_readers;
bool cpus_writer;

inline cpus_read_lock()
{
	THREAD(!cpus_writer, cpus_readers++)
}

inline cpus_read_unlock()
{
	THREAD(true, cpus_readers--)
}

inline cpus_write_lock()
{
	THREAD(!cpus_writer, cpus_writer = true);
	THREAD(cpus_readers == 0, skip)
}

inline cpus_write_unlock()
{
	THREAD(true, cpus_writer = false)
}

/* --- pause_sem, and what CPU hotplug does with it --------------------------------- */

inline down_pause_sem()
{
	THREAD(!pause_sem, pause_sem = true)
}

inline up_pause_sem()
{
	THREAD(true, pause_sem = false)
}

inline begin_transition()
{
#ifdef NO_HOTPLUG_LOCK
	skip
#else
	down_pause_sem()
#endif
}

inline end_transition()
{
#ifdef NO_HOTPLUG_LOCK
	skip
#else
	up_pause_sem()
#endif
}

/* --- The initiator: cpu_pause_run() ---------------------------------------------- */

#define BIT(cpu)	(1 << cpu)
#define IN(set, cpu)	((set) & BIT(cpu))

#ifdef NO_NUMBER
#define STOPPED(s)	1
#else
#define STOPPED(s)	(s)
#endif

#define HAS_STOPPED(cpu) (!IN(others, cpu) || stopped_for[cpu] == STOPPED(seq))
#define ALL_STOPPED	(HAS_STOPPED(0) && HAS_STOPPED(1) && HAS_STOPPED(2))

#define PAUSED(cpu)	(!IN(others, cpu) || paused[cpu])
#define ALL_PAUSED	(PAUSED(0) && PAUSED(1) && PAUSED(2))

#if defined(NO_NUMBER) && !defined(NO_WAIT_FOR_LEAVING)
#define ALL_LEFT	(!stopped_for[0] && !stopped_for[1] && !stopped_for[2])
#else
#define ALL_LEFT	true
#endif

inline send_ipi(cpu)
{
	if
	:: IN(others, cpu) -> pending[cpu] = true
	:: else
	fi
}

#ifdef NO_FAILING
#define FAILS		false
#else
#define FAILS		failed
#endif

#ifdef TRY_COUNTS
#define COUNTS_ALL	true
#else
#define COUNTS_ALL	false
#endif

/* Whether the initiator gave up, and why. */
#define NOT		0
#define EARLY_TIME_OUT	1
#define STUCK		2

/* Give the CPUs that were paused the time to do what we were in the way of. */
inline back_off()
{
#ifdef NO_BACK_OFF
	skip
#else
	THREAD(true, backing_off = true);
	/* Long enough for one step on each CPU, if there is one that it can make. */
	if
	:: RAN(0) && RAN(1) && RAN(2)
	:: timeout
	fi;
	atomic {
		backing_off = false;
		ran[0] = false;
		ran[1] = false;
		ran[2] = false
	}
#endif
}

inline let_go()
{
	seq = NEXT(seq)
}

/* One try, with pause_sem held. Only the first that fails in a row is counted if @sleeps is not. */
inline try_pause(sleeps)
{
	THREAD(true, mask[me] = DAIF_MASKED);
	THREAD(true,
		initiators++;
		assert(initiators == 1);
		seq = NEXT(seq);
		assert(seq < SEQ_LIMIT)
	);
	THREAD(true,
		others = online[0] + 2 * online[1] + 4 * online[2] - BIT(me);
		send_ipi(0);
		send_ipi(1);
		send_ipi(2)
	);

	/* Wait for all to join, or for the time to run out. */
	if
	:: atomic { ALL_STOPPED -> gave_up = NOT }
#ifndef NO_GIVE_UP
	:: atomic {
		early_time_outs < EARLY ->
		early_time_outs++;
		gave_up = EARLY_TIME_OUT
	   }
	:: !sleeps -> gave_up = EARLY_TIME_OUT
	:: atomic { timeout -> gave_up = STUCK }
#endif
	fi;

	if
	:: gave_up == NOT ->
		/* Break, invalidate the TLB, and make. */
		atomic { all_paused = ALL_PAUSED; assert(all_paused) };
		entry_valid = false;
#ifdef CRASH
		if
		:: goto panic
		:: skip
		fi;
#endif
		entry_valid = true
	:: else
	fi;

	let_go();
	initiators--;
	ALL_LEFT;
	THREAD(true,
		mask[me] = UNMASKED;
		if
		:: gave_up == NOT -> failed_tries = 0
		:: gave_up != NOT && (sleeps || COUNTS_ALL || failed_tries == 0) -> failed_tries++
		:: else
		fi;
		failed = failed_tries == TRIES;
		if
		:: failed -> failed_tries = TRIES - 1	/* the next pause has one try */
		:: else
		fi
	)
}

/*
 * Some time after the last try failed, failures are forgotten. Nobody is between two tries then,
 * as who sleeps there tries again much sooner.
 */
inline begin_to_ask()
{
	THREAD(true,
		asking++;
		if
		:: asking == 1 -> failed_tries = 0
		:: skip
		fi
	)
}

inline end_asking()
{
	THREAD(true, asking--)
}

/* Without it these are no steps, which the search would take in every order. */
#ifdef FORGET
#define BEGIN_TO_ASK	begin_to_ask();
#define END_ASKING	end_asking();
#else
#define BEGIN_TO_ASK
#define END_ASKING
#endif

inline cpu_pause_run()
{
	BEGIN_TO_ASK
	do
	::
#ifdef NO_MUTEX
		/* Without a step here the "else" below would be one among the caller's choices. */
		THREAD(true, skip);
#else
		down_pause_sem();
#endif
		if
		:: lost -> up_pause_sem(); break
		:: else
		fi;
		try_pause(true);
#ifndef NO_MUTEX
		up_pause_sem();
#endif

		if
		:: gave_up == NOT -> break
#ifndef NO_FAILING
		:: failed -> assert(deaf); break
#endif
		:: gave_up == STUCK && !FAILS -> back_off()
		:: gave_up == EARLY_TIME_OUT && !FAILS	/* the back-off may be as short as it likes */
		fi
	od;
	END_ASKING
	others = 0
}

/* cpu_pause_try_unmapped() fails if pause_sem is not free. Its own failure harms nobody. */
inline cpu_pause_try()
{
	if
	:: THREAD(!pause_sem, pause_sem = true) ->
		if
		:: lost
		:: else -> BEGIN_TO_ASK try_pause(false); END_ASKING
		fi;
		up_pause_sem();
		others = 0
	:: THREAD(pause_sem, skip)
	fi
}

/* --- The other CPUs: the handler of the IPI -------------------------------------- */

bool stop_ipi[CPUS];		/* the IPI with which a panic stops the others */

proctype ipi(byte me)
{
	byte s;

end:	do
	:: atomic {
		/* The interrupt controller's pending state ends here: another may come. */
		TAKES_IPI(me) && pending[me] ->
		ACCESS;
		in_ipi[me] = true;
		pending[me] = false
	   };
		atomic { ACCESS; s = seq };
		if
		:: s % 2 == 0		/* spurious, or late */
		:: else ->
			atomic { ACCESS; stopped_for[me] = STOPPED(s); paused[me] = true };
			/* From here, only seq is read, which is in the kernel image. */
			atomic { seq != s -> paused[me] = false };
			/* ISB */
#ifdef NO_NUMBER
			atomic { ACCESS; stopped_for[me] = 0 }
#else
			ACCESS
#endif
		fi;
		atomic { s = 0; in_ipi[me] = false }

	:: atomic {
		TAKES_IPI(me) && !in_ipi[me] && stop_ipi[me] ->
		alive[me] = false;
		stop_ipi[me] = false
	   }
	od
}

/* --- stop_machine: multi_cpu_stop() ---------------------------------------------- */

#define NONE		0
#define PREPARE		1
#define DISABLE_IRQ	2
#define RUN		3
#define EXIT		4

byte stop_state;		/* all take the same step, and wait for the last one */
byte stop_threads;		/* CPUs that take part */
byte stop_acks;			/* CPUs that have not acknowledged the state yet */
bool stop_work[CPUS];		/* queued for a CPU's stopper */
byte victim = CPUS;		/* the CPU that goes offline in RUN; CPUS: none */

inline ack_state()
{
	stop_acks--;
	if
	:: stop_acks == 0 -> stop_acks = stop_threads; stop_state = (stop_state + 1) % (EXIT + 1)
	:: else
	fi
}

bool booting[CPUS];

/* The stopper of a CPU; also what a CPU does on its way up and down. */
proctype kernel_thread(byte me)
{
end:	do
	:: atomic {
		stop_work[me] && PREEMPTIBLE(me) ->
		ACCESS;
		ran[me] = backing_off;
		in_stopper[me] = true;
		stop_work[me] = false;
		ack_state()
	   };
		STOPPER(stop_state == DISABLE_IRQ, mask[me] = IRQS_OFF; ack_state());
		STOPPER(stop_state == RUN,
			if
			:: victim == me -> online[me] = false
			:: else
			fi;
			ack_state()
		);
		STOPPER(stop_state == EXIT, mask[me] = UNMASKED; ack_state());
		if
		:: victim == me ->
			/* cpu_die() */
			STOPPER(true, mask[me] = DAIF_MASKED);
			STOPPER(true, alive[me] = false; victim = CPUS)
		:: else
		fi;
		in_stopper[me] = false

	:: atomic { booting[me] -> booting[me] = false; in_stopper[me] = true; alive[me] = true };
		/* secondary_start_kernel() */
		STOPPER(true, skip);
		STOPPER(true, online[me] = true);
		STOPPER(true, mask[me] = UNMASKED; in_stopper[me] = false)
	od
}

/* Have the stoppers of a set of CPUs meet, and wait for them. */
inline stop_cpus(set)
{
	THREAD(stop_state == NONE,
		stop_work[0] = online[0] && IN(set, 0);
		stop_work[1] = online[1] && IN(set, 1);
		stop_work[2] = online[2] && IN(set, 2);
		stop_threads = stop_work[0] + stop_work[1] + stop_work[2];
		stop_acks = stop_threads;
		stop_state = PREPARE
	);
	THREAD(stop_state == NONE, skip)
}

/* --- What tasks do --------------------------------------------------------------- */

bool spinlock;

inline lock_with_interrupts_enabled()
{
	THREAD(true, preempt_off[me] = true);
	THREAD(!spinlock, spinlock = true);
	THREAD(true, spinlock = false; preempt_off[me] = false)
}

inline lock_with_interrupts_disabled()
{
	THREAD(true, mask[me] = IRQS_OFF);
	THREAD(!spinlock, spinlock = true);
	THREAD(true, spinlock = false);
	THREAD(true, mask[me] = UNMASKED)
}

#ifdef NO_LOSS
#define LOSE(runs)	skip
#else
#define LOSE(runs)	lost = runs
#endif

inline cpu_down_and_up(cpu)
{
	cpus_write_lock();
	begin_transition();
	THREAD(stop_state == NONE, victim = cpu);
	stop_cpus(7);
	if
	:: THREAD(!alive[cpu], skip)
#ifdef UNDEAD
	/* Firmware does not say that it is gone. */
	:: THREAD(alive[cpu], LOSE(true))
#endif
	fi;
	end_transition();
	cpus_write_unlock();

	cpus_write_lock();
	begin_transition();
	if
	:: THREAD(!alive[cpu], booting[cpu] = true);
		if
		:: THREAD(online[cpu] && mask[cpu] == UNMASKED, LOSE(false))
#ifdef LATE
		/* If it has its task, it runs; if not, it parks when it comes. */
		:: THREAD(!online[cpu], LOSE(!booting[cpu]); booting[cpu] = false)
#endif
		fi
	/* Firmware does not start what is not gone. */
	:: THREAD(alive[cpu], skip)
	fi;
	end_transition();
	cpus_write_unlock()
}

inline be_deaf()
{
	THREAD(true, mask[me] = DAIF_MASKED);
	if
	:: THREAD(true, mask[me] = UNMASKED)
	:: atomic { true -> deaf = true; goto done }
	fi
}

proctype thread(byte me)
{
	byte ops, others, gave_up;
	bool failed;

	{
	do
	:: me == 0 && ops < PAUSES -> ops++; cpu_pause_run()
	:: me == 0 && ops == PAUSES -> break
	:: me != 0 -> break
	:: me != 0 && ops < OPS -> ops++;
		if
		:: skip
#ifdef PAUSE
		:: cpu_pause_run()
#endif
#ifdef TRY
		:: cpu_pause_try()
#endif
#ifdef LOCK
		:: me == 1 -> lock_with_interrupts_enabled()
		:: me == 2 -> lock_with_interrupts_disabled()
#endif
#ifdef STOP
		:: me == 1 -> cpus_read_lock(); stop_cpus(BIT(1) + BIT(2)); cpus_read_unlock()
		:: me == 2 -> cpus_read_lock(); stop_cpus(7); cpus_read_unlock()
#endif
#ifdef HOTPLUG
		:: me == 1 -> cpu_down_and_up(2)
#endif
#ifdef DEAF
		:: me == 1 -> be_deaf()
#endif
		fi
	od;
	goto done;

#ifdef CRASH
panic:	atomic {
		panicked = true;
#ifndef NO_ABANDON
		let_go();	/* cpu_pause_abandon() */
#endif
		stop_ipi[1] = online[1] && me != 1;
		stop_ipi[2] = online[2] && me != 2;
		stop_ipi[0] = online[0] && me != 0
	};
	!stop_ipi[0] && !stop_ipi[1] && !stop_ipi[2];
#endif

done:	skip
	} unless { panicked && !alive[me] }
}

/* IPIs that do not ask for a pause. */
proctype backtrace()
{
	byte sent;

	do
	:: sent < SPURIOUS ->
		if
		:: pending[0] = true
		:: pending[1] = true
		:: pending[2] = true
		fi;
		sent++
	:: sent == SPURIOUS -> break
	od
}

init
{
	atomic {
		byte cpu;

		for (cpu : 0 .. CPUS - 1) {
			alive[cpu] = true;
			online[cpu] = true;
			run ipi(cpu);
			run kernel_thread(cpu);
			run thread(cpu)
		}
		run backtrace()
	}
}
