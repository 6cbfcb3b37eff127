"""Which leaves the linear map of a kernel can consist of, by the size of its pages."""

from __future__ import annotations

from dataclasses import dataclass

from page_tables import TOOL

from pagewright.machine.options import in_bytes

# Where RAM begins in QEMU's machines. Linear addresses begin there, too, so a leaf that is larger
# has no place in which both of its addresses are aligned.
RAM = 1 << 30


@dataclass(frozen=True)
class LeafSizes:
    """How many bytes the leaves of a kernel map.

    Attributes:
        page: a page.
        pages: a contiguous range of pages.
        block: a block, which takes the place of a table of pages.
        blocks: a contiguous range of blocks.
        giant: a block that takes the place of a table of blocks; 0 if the kernel makes none, as
            with pages of 16 and 64 KiB.
    """

    page: int
    pages: int
    block: int
    blocks: int
    giant: int

    @property
    def large(self) -> int:
        """A contiguous range of blocks, or a block if there is no place for such a range.

        With pages of 64 KiB a range would be 16 GiB.
        """
        return self.blocks if RAM % self.blocks == 0 else self.block

    def largest(self, contiguous: bool = True) -> int:
        """Return the largest leaf that maps any memory.

        Args:
            contiguous: there are contiguous ranges, as where sizes do not change in pauses.
        """
        return self.giant or (self.large if contiguous else self.block)

    def memory(self, asked: str = "1G") -> int:
        """Return as much memory as is asked for, or what takes 32 blocks and 4 of the large leaves.

        The leaves that have the kernel's image, and those that are split for good at boot, are few
        of them then.
        """
        return max(in_bytes(asked), 32 * self.block, 4 * self.large)


def leaf_sizes(page: int) -> LeafSizes:
    """Return the sizes that go with a size of pages."""
    sizes = TOOL.leaf_sizes(page)
    return LeafSizes(
        page,
        sizes["PTE", True],
        sizes["PMD", False],
        sizes["PMD", True],
        # Of the three sizes of pages, Linux makes blocks of this level with one.
        sizes["PUD", False] if page == 4096 else 0,
    )
