// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of aarch64_insn_rmw_class(), in two directions:
 *
 * - from the instructions: tables of encodings, each with the disassembly that
 *   it was assembled from, and the class it must have;
 * - from the encoding: every group of the table in <asm/insn-rmw.h> with every
 *   value of its free fields, and again with each fixed bit inverted.  A word
 *   that this moves out of all groups must be in no class.
 */
#include <kunit/test.h>
#include <linux/array_size.h>
#include <linux/bits.h>
#include <linux/module.h>

#include <asm/insn-rmw.h>

/* Where an instruction has its acquire and release bits, if any. */
#define ORDER_LD	(BIT(23) | BIT(22))
#define ORDER_ST	BIT(22)
#define ORDER_CAS	(BIT(22) | BIT(15))
#define ORDER_EXCL	BIT(15)

/**
 * struct rmw_example - one instruction that has to be found
 * @insn: its encoding, without acquire and release
 * @order: the bits that make it acquire, release or both
 * @text: its disassembly
 */
struct rmw_example {
	u32 insn;
	u32 order;
	const char *text;
};

static const struct rmw_example atomics[] = {
	/* FEAT_LSE */
	{ 0x38210062, ORDER_LD, "ldaddb w1, w2, [x3]" },
	{ 0x78210062, ORDER_LD, "ldaddh w1, w2, [x3]" },
	{ 0xb8210062, ORDER_LD, "ldadd w1, w2, [x3]" },
	{ 0xf8210062, ORDER_LD, "ldadd x1, x2, [x3]" },
	{ 0x3821007f, ORDER_ST, "staddb w1, [x3]" },
	{ 0x7821007f, ORDER_ST, "staddh w1, [x3]" },
	{ 0xb821007f, ORDER_ST, "stadd w1, [x3]" },
	{ 0xf821007f, ORDER_ST, "stadd x1, [x3]" },
	{ 0x38211062, ORDER_LD, "ldclrb w1, w2, [x3]" },
	{ 0x78211062, ORDER_LD, "ldclrh w1, w2, [x3]" },
	{ 0xb8211062, ORDER_LD, "ldclr w1, w2, [x3]" },
	{ 0xf8211062, ORDER_LD, "ldclr x1, x2, [x3]" },
	{ 0x3821107f, ORDER_ST, "stclrb w1, [x3]" },
	{ 0x7821107f, ORDER_ST, "stclrh w1, [x3]" },
	{ 0xb821107f, ORDER_ST, "stclr w1, [x3]" },
	{ 0xf821107f, ORDER_ST, "stclr x1, [x3]" },
	{ 0x38212062, ORDER_LD, "ldeorb w1, w2, [x3]" },
	{ 0x78212062, ORDER_LD, "ldeorh w1, w2, [x3]" },
	{ 0xb8212062, ORDER_LD, "ldeor w1, w2, [x3]" },
	{ 0xf8212062, ORDER_LD, "ldeor x1, x2, [x3]" },
	{ 0x3821207f, ORDER_ST, "steorb w1, [x3]" },
	{ 0x7821207f, ORDER_ST, "steorh w1, [x3]" },
	{ 0xb821207f, ORDER_ST, "steor w1, [x3]" },
	{ 0xf821207f, ORDER_ST, "steor x1, [x3]" },
	{ 0x38213062, ORDER_LD, "ldsetb w1, w2, [x3]" },
	{ 0x78213062, ORDER_LD, "ldseth w1, w2, [x3]" },
	{ 0xb8213062, ORDER_LD, "ldset w1, w2, [x3]" },
	{ 0xf8213062, ORDER_LD, "ldset x1, x2, [x3]" },
	{ 0x3821307f, ORDER_ST, "stsetb w1, [x3]" },
	{ 0x7821307f, ORDER_ST, "stseth w1, [x3]" },
	{ 0xb821307f, ORDER_ST, "stset w1, [x3]" },
	{ 0xf821307f, ORDER_ST, "stset x1, [x3]" },
	{ 0x38214062, ORDER_LD, "ldsmaxb w1, w2, [x3]" },
	{ 0x78214062, ORDER_LD, "ldsmaxh w1, w2, [x3]" },
	{ 0xb8214062, ORDER_LD, "ldsmax w1, w2, [x3]" },
	{ 0xf8214062, ORDER_LD, "ldsmax x1, x2, [x3]" },
	{ 0x3821407f, ORDER_ST, "stsmaxb w1, [x3]" },
	{ 0x7821407f, ORDER_ST, "stsmaxh w1, [x3]" },
	{ 0xb821407f, ORDER_ST, "stsmax w1, [x3]" },
	{ 0xf821407f, ORDER_ST, "stsmax x1, [x3]" },
	{ 0x38215062, ORDER_LD, "ldsminb w1, w2, [x3]" },
	{ 0x78215062, ORDER_LD, "ldsminh w1, w2, [x3]" },
	{ 0xb8215062, ORDER_LD, "ldsmin w1, w2, [x3]" },
	{ 0xf8215062, ORDER_LD, "ldsmin x1, x2, [x3]" },
	{ 0x3821507f, ORDER_ST, "stsminb w1, [x3]" },
	{ 0x7821507f, ORDER_ST, "stsminh w1, [x3]" },
	{ 0xb821507f, ORDER_ST, "stsmin w1, [x3]" },
	{ 0xf821507f, ORDER_ST, "stsmin x1, [x3]" },
	{ 0x38216062, ORDER_LD, "ldumaxb w1, w2, [x3]" },
	{ 0x78216062, ORDER_LD, "ldumaxh w1, w2, [x3]" },
	{ 0xb8216062, ORDER_LD, "ldumax w1, w2, [x3]" },
	{ 0xf8216062, ORDER_LD, "ldumax x1, x2, [x3]" },
	{ 0x3821607f, ORDER_ST, "stumaxb w1, [x3]" },
	{ 0x7821607f, ORDER_ST, "stumaxh w1, [x3]" },
	{ 0xb821607f, ORDER_ST, "stumax w1, [x3]" },
	{ 0xf821607f, ORDER_ST, "stumax x1, [x3]" },
	{ 0x38217062, ORDER_LD, "lduminb w1, w2, [x3]" },
	{ 0x78217062, ORDER_LD, "lduminh w1, w2, [x3]" },
	{ 0xb8217062, ORDER_LD, "ldumin w1, w2, [x3]" },
	{ 0xf8217062, ORDER_LD, "ldumin x1, x2, [x3]" },
	{ 0x3821707f, ORDER_ST, "stuminb w1, [x3]" },
	{ 0x7821707f, ORDER_ST, "stuminh w1, [x3]" },
	{ 0xb821707f, ORDER_ST, "stumin w1, [x3]" },
	{ 0xf821707f, ORDER_ST, "stumin x1, [x3]" },
	{ 0x38218062, ORDER_LD, "swpb w1, w2, [x3]" },
	{ 0x78218062, ORDER_LD, "swph w1, w2, [x3]" },
	{ 0xb8218062, ORDER_LD, "swp w1, w2, [x3]" },
	{ 0xf8218062, ORDER_LD, "swp x1, x2, [x3]" },
	{ 0x08a17c62, ORDER_CAS, "casb w1, w2, [x3]" },
	{ 0x48a17c62, ORDER_CAS, "cash w1, w2, [x3]" },
	{ 0x88a17c62, ORDER_CAS, "cas w1, w2, [x3]" },
	{ 0xc8a17c62, ORDER_CAS, "cas x1, x2, [x3]" },
	{ 0x08227cc4, ORDER_CAS, "casp w2, w3, w4, w5, [x6]" },
	{ 0x48227cc4, ORDER_CAS, "casp x2, x3, x4, x5, [x6]" },
	/* FEAT_LSE128 */
	{ 0x19221061, ORDER_LD, "ldclrp x1, x2, [x3]" },
	{ 0x19223061, ORDER_LD, "ldsetp x1, x2, [x3]" },
	{ 0x19228061, ORDER_LD, "swpp x1, x2, [x3]" },
	/* FEAT_LSUI */
	{ 0x19210462, ORDER_LD, "ldtadd w1, w2, [x3]" },
	{ 0x59210462, ORDER_LD, "ldtadd x1, x2, [x3]" },
	{ 0x19211462, ORDER_LD, "ldtclr w1, w2, [x3]" },
	{ 0x59211462, ORDER_LD, "ldtclr x1, x2, [x3]" },
	{ 0x19213462, ORDER_LD, "ldtset w1, w2, [x3]" },
	{ 0x59213462, ORDER_LD, "ldtset x1, x2, [x3]" },
	{ 0x19218462, ORDER_LD, "swpt w1, w2, [x3]" },
	{ 0x59218462, ORDER_LD, "swpt x1, x2, [x3]" },
	{ 0x1921047f, ORDER_ST, "sttadd w1, [x3]" },
	{ 0x5921047f, ORDER_ST, "sttadd x1, [x3]" },
	{ 0x1921147f, ORDER_ST, "sttclr w1, [x3]" },
	{ 0x5921147f, ORDER_ST, "sttclr x1, [x3]" },
	{ 0x1921347f, ORDER_ST, "sttset w1, [x3]" },
	{ 0x5921347f, ORDER_ST, "sttset x1, [x3]" },
	{ 0xc9817c62, ORDER_CAS, "cast x1, x2, [x3]" },
	{ 0x49827cc4, ORDER_CAS, "caspt x2, x3, x4, x5, [x6]" },
	/* FEAT_THE, FEAT_D128 */
	{ 0x19210862, ORDER_LD, "rcwcas x1, x2, [x3]" },
	{ 0x38219062, ORDER_LD, "rcwclr x1, x2, [x3]" },
	{ 0x3821a062, ORDER_LD, "rcwswp x1, x2, [x3]" },
	{ 0x3821b062, ORDER_LD, "rcwset x1, x2, [x3]" },
	{ 0x19229061, ORDER_LD, "rcwclrp x1, x2, [x3]" },
	{ 0x1922a061, ORDER_LD, "rcwswpp x1, x2, [x3]" },
	{ 0x1922b061, ORDER_LD, "rcwsetp x1, x2, [x3]" },
	{ 0x19220cc4, ORDER_LD, "rcwcasp x2, x3, x4, x5, [x6]" },
	{ 0x59210862, ORDER_LD, "rcwscas x1, x2, [x3]" },
	{ 0x78219062, ORDER_LD, "rcwsclr x1, x2, [x3]" },
	{ 0x7821a062, ORDER_LD, "rcwsswp x1, x2, [x3]" },
	{ 0x7821b062, ORDER_LD, "rcwsset x1, x2, [x3]" },
	{ 0x59229061, ORDER_LD, "rcwsclrp x1, x2, [x3]" },
	{ 0x5922a061, ORDER_LD, "rcwsswpp x1, x2, [x3]" },
	{ 0x5922b061, ORDER_LD, "rcwssetp x1, x2, [x3]" },
	{ 0x59220cc4, ORDER_LD, "rcwscasp x2, x3, x4, x5, [x6]" },
	/* FEAT_LSFE */
	{ 0x7c210062, ORDER_LD, "ldfadd h1, h2, [x3]" },
	{ 0xbc210062, ORDER_LD, "ldfadd s1, s2, [x3]" },
	{ 0xfc210062, ORDER_LD, "ldfadd d1, d2, [x3]" },
	{ 0x3c210062, ORDER_LD, "ldbfadd h1, h2, [x3]" },
	{ 0x7c214062, ORDER_LD, "ldfmax h1, h2, [x3]" },
	{ 0xbc214062, ORDER_LD, "ldfmax s1, s2, [x3]" },
	{ 0xfc214062, ORDER_LD, "ldfmax d1, d2, [x3]" },
	{ 0x3c214062, ORDER_LD, "ldbfmax h1, h2, [x3]" },
	{ 0x7c215062, ORDER_LD, "ldfmin h1, h2, [x3]" },
	{ 0xbc215062, ORDER_LD, "ldfmin s1, s2, [x3]" },
	{ 0xfc215062, ORDER_LD, "ldfmin d1, d2, [x3]" },
	{ 0x3c215062, ORDER_LD, "ldbfmin h1, h2, [x3]" },
	{ 0x7c216062, ORDER_LD, "ldfmaxnm h1, h2, [x3]" },
	{ 0xbc216062, ORDER_LD, "ldfmaxnm s1, s2, [x3]" },
	{ 0xfc216062, ORDER_LD, "ldfmaxnm d1, d2, [x3]" },
	{ 0x3c216062, ORDER_LD, "ldbfmaxnm h1, h2, [x3]" },
	{ 0x7c217062, ORDER_LD, "ldfminnm h1, h2, [x3]" },
	{ 0xbc217062, ORDER_LD, "ldfminnm s1, s2, [x3]" },
	{ 0xfc217062, ORDER_LD, "ldfminnm d1, d2, [x3]" },
	{ 0x3c217062, ORDER_LD, "ldbfminnm h1, h2, [x3]" },
	{ 0x7c21807f, ORDER_ST, "stfadd h1, [x3]" },
	{ 0xbc21807f, ORDER_ST, "stfadd s1, [x3]" },
	{ 0xfc21807f, ORDER_ST, "stfadd d1, [x3]" },
	{ 0x3c21807f, ORDER_ST, "stbfadd h1, [x3]" },
	{ 0x7c21c07f, ORDER_ST, "stfmax h1, [x3]" },
	{ 0xbc21c07f, ORDER_ST, "stfmax s1, [x3]" },
	{ 0xfc21c07f, ORDER_ST, "stfmax d1, [x3]" },
	{ 0x3c21c07f, ORDER_ST, "stbfmax h1, [x3]" },
	{ 0x7c21d07f, ORDER_ST, "stfmin h1, [x3]" },
	{ 0xbc21d07f, ORDER_ST, "stfmin s1, [x3]" },
	{ 0xfc21d07f, ORDER_ST, "stfmin d1, [x3]" },
	{ 0x3c21d07f, ORDER_ST, "stbfmin h1, [x3]" },
	{ 0x7c21e07f, ORDER_ST, "stfmaxnm h1, [x3]" },
	{ 0xbc21e07f, ORDER_ST, "stfmaxnm s1, [x3]" },
	{ 0xfc21e07f, ORDER_ST, "stfmaxnm d1, [x3]" },
	{ 0x3c21e07f, ORDER_ST, "stbfmaxnm h1, [x3]" },
	{ 0x7c21f07f, ORDER_ST, "stfminnm h1, [x3]" },
	{ 0xbc21f07f, ORDER_ST, "stfminnm s1, [x3]" },
	{ 0xfc21f07f, ORDER_ST, "stfminnm d1, [x3]" },
	{ 0x3c21f07f, ORDER_ST, "stbfminnm h1, [x3]" },
};

static const struct rmw_example exclusives[] = {
	{ 0x085f7c61, ORDER_EXCL, "ldxrb w1, [x3]" },
	{ 0x485f7c61, ORDER_EXCL, "ldxrh w1, [x3]" },
	{ 0x885f7c61, ORDER_EXCL, "ldxr w1, [x3]" },
	{ 0xc85f7c61, ORDER_EXCL, "ldxr x1, [x3]" },
	{ 0x887f0861, ORDER_EXCL, "ldxp w1, w2, [x3]" },
	{ 0xc87f0861, ORDER_EXCL, "ldxp x1, x2, [x3]" },
	/* FEAT_LSUI */
	{ 0x895f7c61, ORDER_EXCL, "ldtxr w1, [x3]" },
	{ 0xc95f7c61, ORDER_EXCL, "ldtxr x1, [x3]" },
};

/**
 * struct rmw_other - one word that must not be in any class
 * @insn: the word
 * @text: its disassembly, or what makes it unallocated
 */
struct rmw_other {
	u32 insn;
	const char *text;
};

static const struct rmw_other others[] = {
	/* the neighbours of the atomics: load-acquire RCpc, and the 64-byte accesses */
	{ 0x38bfc061, "ldaprb w1, [x3]" },
	{ 0x78bfc061, "ldaprh w1, [x3]" },
	{ 0xb8bfc061, "ldapr w1, [x3]" },
	{ 0xf8bfc061, "ldapr x1, [x3]" },
	{ 0xf83fd062, "ld64b x2, [x3]" },
	{ 0xf83f9062, "st64b x2, [x3]" },
	{ 0xf821b062, "st64bv x1, x2, [x3]" },
	{ 0xf821a062, "st64bv0 x1, x2, [x3]" },
	/* the neighbours of the exclusives: load-acquire, store-release */
	{ 0x08dffc61, "ldarb w1, [x3]" },
	{ 0x48dffc61, "ldarh w1, [x3]" },
	{ 0x88dffc61, "ldar w1, [x3]" },
	{ 0xc8dffc61, "ldar x1, [x3]" },
	{ 0x08df7c61, "ldlarb w1, [x3]" },
	{ 0x48df7c61, "ldlarh w1, [x3]" },
	{ 0x88df7c61, "ldlar w1, [x3]" },
	{ 0xc8df7c61, "ldlar x1, [x3]" },
	{ 0x089ffc61, "stlrb w1, [x3]" },
	{ 0x489ffc61, "stlrh w1, [x3]" },
	{ 0x889ffc61, "stlr w1, [x3]" },
	{ 0xc89ffc61, "stlr x1, [x3]" },
	{ 0x089f7c61, "stllrb w1, [x3]" },
	{ 0x489f7c61, "stllrh w1, [x3]" },
	{ 0x889f7c61, "stllr w1, [x3]" },
	{ 0xc89f7c61, "stllr x1, [x3]" },
	/* store-exclusives */
	{ 0x08017c62, "stxrb w1, w2, [x3]" },
	{ 0x48017c62, "stxrh w1, w2, [x3]" },
	{ 0x88017c62, "stxr w1, w2, [x3]" },
	{ 0xc8017c62, "stxr w1, x2, [x3]" },
	{ 0x0801fc62, "stlxrb w1, w2, [x3]" },
	{ 0x4801fc62, "stlxrh w1, w2, [x3]" },
	{ 0x8801fc62, "stlxr w1, w2, [x3]" },
	{ 0xc801fc62, "stlxr w1, x2, [x3]" },
	{ 0x88210c82, "stxp w1, w2, w3, [x4]" },
	{ 0xc8210c82, "stxp w1, x2, x3, [x4]" },
	{ 0x88218c82, "stlxp w1, w2, w3, [x4]" },
	{ 0xc8218c82, "stlxp w1, x2, x3, [x4]" },
	{ 0x89017c62, "sttxr w1, w2, [x3]" },
	{ 0xc9017c62, "sttxr w1, x2, [x3]" },
	{ 0x8901fc62, "stltxr w1, w2, [x3]" },
	{ 0xc901fc62, "stltxr w1, x2, [x3]" },
	/* plain loads and stores, one for each address mode */
	{ 0xf9400041, "ldr x1, [x2]" },
	{ 0xb9400441, "ldr w1, [x2, #4]" },
	{ 0x39400041, "ldrb w1, [x2]" },
	{ 0x79400041, "ldrh w1, [x2]" },
	{ 0x39800041, "ldrsb x1, [x2]" },
	{ 0x79c00041, "ldrsh w1, [x2]" },
	{ 0xb9800041, "ldrsw x1, [x2]" },
	{ 0xf8408c41, "ldr x1, [x2, #8]!" },
	{ 0xf8408441, "ldr x1, [x2], #8" },
	{ 0x38401441, "ldrb w1, [x2], #1" },
	{ 0xf8636841, "ldr x1, [x2, x3]" },
	{ 0xb8635841, "ldr w1, [x2, w3, uxtw #2]" },
	{ 0x58000041, "ldr x1, #8" },
	{ 0x98000041, "ldrsw x1, #8" },
	{ 0xf85f8041, "ldur x1, [x2, #-8]" },
	{ 0x38401041, "ldurb w1, [x2, #1]" },
	{ 0xf8400841, "ldtr x1, [x2]" },
	{ 0xa9400861, "ldp x1, x2, [x3]" },
	{ 0x28c10861, "ldp w1, w2, [x3], #8" },
	{ 0xa9c10861, "ldp x1, x2, [x3, #16]!" },
	{ 0xa8400861, "ldnp x1, x2, [x3]" },
	{ 0x69400861, "ldpsw x1, x2, [x3]" },
	{ 0xf9000041, "str x1, [x2]" },
	{ 0x38236841, "strb w1, [x2, x3]" },
	{ 0xb81fc041, "stur w1, [x2, #-4]" },
	{ 0xf8000841, "sttr x1, [x2]" },
	{ 0xa9bf0861, "stp x1, x2, [x3, #-16]!" },
	{ 0xa8000861, "stnp x1, x2, [x3]" },
	{ 0x3d400041, "ldr b1, [x2]" },
	{ 0x3dc00041, "ldr q1, [x2]" },
	{ 0x3cc10441, "ldr q1, [x2], #16" },
	{ 0xfc636841, "ldr d1, [x2, x3]" },
	{ 0x1c000041, "ldr s1, #8" },
	{ 0x3cdf0041, "ldur q1, [x2, #-16]" },
	{ 0xad400861, "ldp q1, q2, [x3]" },
	{ 0x3ca36841, "str q1, [x2, x3]" },
	{ 0x6d000861, "stp d1, d2, [x3]" },
	/* structures */
	{ 0x4c407041, "ld1 {v1.16b}, [x2]" },
	{ 0x0d400c41, "ld1 {v1.b}[3], [x2]" },
	{ 0x4d40c841, "ld1r {v1.4s}, [x2]" },
	{ 0x4c408861, "ld2 {v1.4s, v2.4s}, [x3]" },
	{ 0x4cdf0ca1, "ld4 {v1.2d-v4.2d}, [x5], #64" },
	{ 0x4c007c41, "st1 {v1.2d}, [x2]" },
	{ 0x0d006881, "st3 {v1.h-v3.h}[1], [x4]" },
	{ 0x0d418441, "ldap1 {v1.d}[0], [x2]" },
	{ 0x0d018441, "stl1 {v1.d}[0], [x2]" },
	/* prefetches */
	{ 0xf9800020, "prfm pldl1keep, [x1]" },
	{ 0xf8a26831, "prfm pstl1strm, [x1, x2]" },
	{ 0xd8000040, "prfm pldl1keep, #8" },
	{ 0xf89f8020, "prfum pldl1keep, [x1, #-8]" },
	/* FEAT_LRCPC2, FEAT_LRCPC3 */
	{ 0xd9408041, "ldapur x1, [x2, #8]" },
	{ 0x19400041, "ldapurb w1, [x2]" },
	{ 0x99800041, "ldapursw x1, [x2]" },
	{ 0x1dc00841, "ldapur q1, [x2]" },
	{ 0xd9008041, "stlur x1, [x2, #8]" },
	{ 0x19000041, "stlurb w1, [x2]" },
	{ 0xd9421861, "ldiapp x1, x2, [x3]" },
	{ 0xd9420861, "ldiapp x1, x2, [x3], #16" },
	{ 0xd9021861, "stilp x1, x2, [x3]" },
	{ 0xd9c00841, "ldapr x1, [x2], #8" },
	{ 0xd9800841, "stlr x1, [x2, #-8]!" },
	/* FEAT_LSUI pairs */
	{ 0xe9400861, "ldtp x1, x2, [x3]" },
	{ 0xe9000861, "sttp x1, x2, [x3]" },
	/* FEAT_PAuth */
	{ 0xf8200441, "ldraa x1, [x2]" },
	{ 0xf8201c41, "ldraa x1, [x2, #8]!" },
	{ 0xf8a00441, "ldrab x1, [x2]" },
	/* FEAT_MTE */
	{ 0xd9600041, "ldg x1, [x2]" },
	{ 0xd9e00041, "ldgm x1, [x2]" },
	{ 0xd9200841, "stg x1, [x2]" },
	{ 0xd9201441, "stg x1, [x2], #16" },
	{ 0xd9a00841, "st2g x1, [x2]" },
	{ 0xd9600841, "stzg x1, [x2]" },
	{ 0xd9a00041, "stgm x1, [x2]" },
	{ 0xd9200041, "stzgm x1, [x2]" },
	{ 0x69000861, "stgp x1, x2, [x3]" },
	/* FEAT_MOPS: the source is not the destination */
	{ 0x19020461, "cpyfp [x1]!, [x2]!, x3!" },
	{ 0x19420461, "cpyfm [x1]!, [x2]!, x3!" },
	{ 0x19820461, "cpyfe [x1]!, [x2]!, x3!" },
	{ 0x1d020461, "cpyp [x1]!, [x2]!, x3!" },
	{ 0x1d420461, "cpym [x1]!, [x2]!, x3!" },
	{ 0x1d820461, "cpye [x1]!, [x2]!, x3!" },
	{ 0x1d02e461, "cpyprtn [x1]!, [x2]!, x3!" },
	{ 0x19c30441, "setp [x1]!, x2!, x3" },
	{ 0x19c34441, "setm [x1]!, x2!, x3" },
	{ 0x19c38441, "sete [x1]!, x2!, x3" },
	{ 0x1dc30441, "setgp [x1]!, x2!, x3" },
	/* FEAT_GCS */
	{ 0xd91f0c41, "gcsstr x1, [x2]" },
	{ 0xd91f1c41, "gcssttr x1, [x2]" },
	/* no load or store of the A64 base set */
	{ 0xd503201f, "nop" },
	{ 0x8b030041, "add x1, x2, x3" },
	{ 0x14000002, "b #8" },
	{ 0xd65f03c0, "ret" },
	{ 0xd4000001, "svc #0" },
	{ 0xd53bd041, "mrs x1, tpidr_el0" },
	{ 0xd50b7421, "dc zva, x1" },
	{ 0xa400a441, "ld1b {z1.b}, p1/z, [x2]" },
	{ 0xc5c3e441, "ldff1d {z1.d}, p1/z, [x2, z3.d]" },
	{ 0xe540e441, "st1w {z1.s}, p1, [x2]" },
	{ 0x85804041, "ldr z1, [x2]" },
};

static const struct rmw_other unallocated[] = {
	{ 0x48237cc4, "casp, odd Rs" },
	{ 0x48227cc5, "casp, odd Rt" },
	{ 0x482278c4, "casp, Rt2 is not 31" },
	{ 0xc8a17862, "cas, Rt2 is not 31" },
	{ 0xc9a17c62, "cast, bit 21" },
	{ 0x89817c62, "cast, 32 bits" },
	{ 0xc9817862, "cast, Rt2 is not 31" },
	{ 0x49837cc4, "caspt, odd Rs" },
	{ 0x49827cc5, "caspt, odd Rt" },
	{ 0x09827cc4, "caspt, 32 bits" },
	{ 0x495f7c61, "ldtxr, 16 bits" },
	{ 0x897f7c61, "ldtxr, a pair" },
	{ 0x193f1061, "ldclrp, Rs is 31" },
	{ 0x1922107f, "ldclrp, Rt is 31" },
	{ 0x59221061, "ldclrp, bit 30" },
	{ 0x193f8061, "swpp, Rs is 31" },
	{ 0x59228061, "swpp, bit 30" },
	{ 0x19220061, "ldaddp does not exist" },
	{ 0x19222061, "ldeorp does not exist" },
	{ 0x193f9061, "rcwclrp, Rs is 31" },
	{ 0x1922907f, "rcwclrp, Rt is 31" },
	{ 0x19230cc4, "rcwcasp, odd Rs" },
	{ 0x19220cc5, "rcwcasp, odd Rt" },
	{ 0x19211862, "rcwcas, opcode 1" },
	{ 0x99210862, "rcwcas, bit 31" },
	{ 0x19212462, "ldteor does not exist" },
	{ 0x99210462, "ldtadd, bit 31" },
	{ 0xb8219062, "rcwclr, bit 31" },
	{ 0xf8a19062, "st64b with acquire" },
	{ 0x383fc061, "ldaprb without acquire" },
	{ 0xf8ffd062, "ld64b with acquire and release" },
	{ 0x7c211062, "floating-point ldclr" },
	{ 0x7ca1807f, "stfadd with acquire" },
	{ 0x7c218062, "stfadd with a destination" },
	{ 0x7c21907f, "floating-point stclr" },
	{ 0x00000000, "udf #0" },
	{ 0xffffffff, "all ones" },
};

/**
 * struct rmw_group - one line of the table in <asm/insn-rmw.h>
 * @mask: the fixed bits
 * @value: what they are
 * @class: the class of the whole group
 * @name: the instructions
 * @not_r31: a pair in Rs and Rt, neither of which may be 31
 */
struct rmw_group {
	u32 mask;
	u32 value;
	enum aarch64_insn_rmw class;
	const char *name;
	bool not_r31;
};

#define ATOMIC		AARCH64_INSN_RMW_ATOMIC
#define EXCLUSIVE	AARCH64_INSN_RMW_EXCLUSIVE

static const struct rmw_group groups[] = {
	{ 0x3fe00000, 0x08400000, EXCLUSIVE, "ldxr" },
	{ 0xbfe00000, 0x88600000, EXCLUSIVE, "ldxp" },
	{ 0xbfe00000, 0x89400000, EXCLUSIVE, "ldtxr" },
	{ 0x3fa07c00, 0x08a07c00, ATOMIC, "cas" },
	{ 0xbfa17c01, 0x08207c00, ATOMIC, "casp" },
	{ 0xffa07c00, 0xc9807c00, ATOMIC, "cast" },
	{ 0xffa17c01, 0x49807c00, ATOMIC, "caspt" },
	{ 0xbf20fc00, 0x19200400, ATOMIC, "ldtadd" },
	{ 0xbf20fc00, 0x19201400, ATOMIC, "ldtclr" },
	{ 0xbf20fc00, 0x19203400, ATOMIC, "ldtset" },
	{ 0xbf20fc00, 0x19208400, ATOMIC, "swpt" },
	{ 0xff20fc00, 0x19201000, ATOMIC, "ldclrp", .not_r31 = true },
	{ 0xff20fc00, 0x19203000, ATOMIC, "ldsetp", .not_r31 = true },
	{ 0xff20fc00, 0x19208000, ATOMIC, "swpp", .not_r31 = true },
	{ 0xbf20fc00, 0x19200800, ATOMIC, "rcwcas" },
	{ 0xbf21fc01, 0x19200c00, ATOMIC, "rcwcasp" },
	{ 0xbf20fc00, 0x19209000, ATOMIC, "rcwclrp", .not_r31 = true },
	{ 0xbf20fc00, 0x1920a000, ATOMIC, "rcwswpp", .not_r31 = true },
	{ 0xbf20fc00, 0x1920b000, ATOMIC, "rcwsetp", .not_r31 = true },
	{ 0x3f208c00, 0x38200000, ATOMIC, "ldadd to ldumin" },
	{ 0x3f20fc00, 0x38208000, ATOMIC, "swp" },
	{ 0xbf20fc00, 0x38209000, ATOMIC, "rcwclr" },
	{ 0xbf20fc00, 0x3820a000, ATOMIC, "rcwswp" },
	{ 0xbf20fc00, 0x3820b000, ATOMIC, "rcwset" },
	{ 0x3f20fc00, 0x3c200000, ATOMIC, "ldfadd" },
	{ 0x3f20cc00, 0x3c204000, ATOMIC, "ldfmax to ldfminnm" },
	{ 0x3fa0fc1f, 0x3c20801f, ATOMIC, "stfadd" },
	{ 0x3fa0cc1f, 0x3c20c01f, ATOMIC, "stfmax to stfminnm" },
};

KUNIT_ARRAY_PARAM_DESC(group, groups, name);

/* The next word after @bits with some of the bits of @free set; 0 at the end. */
static u32 next_subset(u32 bits, u32 free)
{
	return (bits - free) & free;
}

static void expect_examples(struct kunit *test, const struct rmw_example *example, size_t n,
			    enum aarch64_insn_rmw class)
{
	for (; n--; example++) {
		u32 order = 0;

		do {
			u32 insn = example->insn | order;

			KUNIT_EXPECT_EQ_MSG(test, aarch64_insn_rmw_class(insn), class,
					    "%08x, from: %s", insn, example->text);
			KUNIT_EXPECT_TRUE_MSG(test, aarch64_insn_may_be_rmw(insn),
					      "%08x, from: %s", insn, example->text);
			order = next_subset(order, example->order);
		} while (order);
	}
}

static void expect_none(struct kunit *test, const struct rmw_other *other, size_t n)
{
	for (; n--; other++)
		KUNIT_EXPECT_EQ_MSG(test, aarch64_insn_rmw_class(other->insn),
				    AARCH64_INSN_RMW_NONE, "%08x: %s", other->insn, other->text);
}

/* What the fault path sees most must be rejected before it is classified. */
static void test_plain_loads(struct kunit *test)
{
	static const u32 loads[] = {
		0xf9400020,	/* ldr x0, [x1] */
		0xb9400420,	/* ldr w0, [x1, #4] */
		0x39400020,	/* ldrb w0, [x1] */
		0xf8408420,	/* ldr x0, [x1], #8 */
		0xf8408020,	/* ldur x0, [x1, #8] */
		0xf8626820,	/* ldr x0, [x1, x2] */
		0x38626820,	/* ldrb w0, [x1, x2] */
		0x3ce26820,	/* ldr q0, [x1, x2] */
		0xa9400420,	/* ldp x0, x1, [x1] */
		0x3dc00020,	/* ldr q0, [x1] */
		0xad400420,	/* ldp q0, q1, [x1] */
	};

	for (size_t i = 0; i < ARRAY_SIZE(loads); i++)
		KUNIT_EXPECT_FALSE_MSG(test, aarch64_insn_may_be_rmw(loads[i]),
				       "%08x", loads[i]);
}

static void test_atomics(struct kunit *test)
{
	expect_examples(test, atomics, ARRAY_SIZE(atomics), AARCH64_INSN_RMW_ATOMIC);
}

static void test_exclusives(struct kunit *test)
{
	expect_examples(test, exclusives, ARRAY_SIZE(exclusives), AARCH64_INSN_RMW_EXCLUSIVE);
}

static void test_others(struct kunit *test)
{
	expect_none(test, others, ARRAY_SIZE(others));
}

static void test_unallocated(struct kunit *test)
{
	expect_none(test, unallocated, ARRAY_SIZE(unallocated));
}

/* The class of @insn by the table of groups. */
static enum aarch64_insn_rmw group_class(u32 insn)
{
	for (size_t i = 0; i < ARRAY_SIZE(groups); i++) {
		const struct rmw_group *group = &groups[i];

		if ((insn & group->mask) != group->value)
			continue;
		if (group->not_r31 && (((insn >> 16) & 31) == 31 || (insn & 31) == 31))
			continue;
		return group->class;
	}
	return AARCH64_INSN_RMW_NONE;
}

/*
 * Compare the decoder with the table for all values of the free fields of
 * @group, its fixed bits inverted as @flip says.  Of the registers Rs and Rt a
 * few numbers are tried, which include odd ones and 31; Rn, which never matters,
 * just varies.  Stop at the first difference.
 */
static void expect_group(struct kunit *test, const struct rmw_group *group, u32 flip)
{
	static const u8 regs[] = { 0, 1, 2, 30, 31 };
	const u32 reg_fields = GENMASK(20, 16) | GENMASK(9, 5) | GENMASK(4, 0);
	const u32 fields = ~group->mask & ~reg_fields;
	u32 bits = 0;

	do {
		for (size_t i = 0; i < ARRAY_SIZE(regs) * ARRAY_SIZE(regs); i++) {
			u32 rs = regs[i / ARRAY_SIZE(regs)];
			u32 rt = regs[i % ARRAY_SIZE(regs)];
			u32 free = bits | rs << 16 | i << 5 | rt;
			u32 insn = (group->value ^ flip) | (free & ~group->mask);

			if (aarch64_insn_rmw_class(insn) != AARCH64_INSN_RMW_NONE &&
			    !aarch64_insn_may_be_rmw(insn)) {
				KUNIT_FAIL(test, "%08x is rejected too quickly", insn);
				return;
			}
			if (aarch64_insn_rmw_class(insn) != group_class(insn)) {
				KUNIT_FAIL(test, "%08x, by inverting %08x: class %d, not %d",
					   insn, flip, aarch64_insn_rmw_class(insn),
					   group_class(insn));
				return;
			}
		}
		bits = next_subset(bits, fields);
	} while (bits);
}

static void test_group(struct kunit *test)
{
	const struct rmw_group *group = test->param_value;

	KUNIT_ASSERT_EQ(test, group_class(group->value), group->class);
	expect_group(test, group, 0);
}

static void test_fixed_bits(struct kunit *test)
{
	const struct rmw_group *group = test->param_value;

	for (unsigned int bit = 0; bit < 32; bit++)
		if (group->mask & BIT(bit))
			expect_group(test, group, BIT(bit));
}

static struct kunit_case insn_rmw_test_cases[] = {
	KUNIT_CASE(test_plain_loads),
	KUNIT_CASE(test_atomics),
	KUNIT_CASE(test_exclusives),
	KUNIT_CASE(test_others),
	KUNIT_CASE(test_unallocated),
	KUNIT_CASE_PARAM(test_group, group_gen_params),
	KUNIT_CASE_PARAM(test_fixed_bits, group_gen_params),
	{}
};

static struct kunit_suite insn_rmw_test_suite = {
	.name = "aarch64_insn_rmw",
	.test_cases = insn_rmw_test_cases,
};

kunit_test_suite(insn_rmw_test_suite);

MODULE_DESCRIPTION("KUnit tests of the decoder of atomic read-modify-write instructions");
MODULE_LICENSE("GPL");
