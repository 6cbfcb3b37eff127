"""What goes wrong, said once and plainly."""


class PagewrightError(Exception):
    """An error the user can act on; the CLI prints it without a traceback.

    Args:
        what: what happened, one line.
        todo: what to do about it, one line, or empty.
        details: output that helps (a console's last lines, a tool's messages).
    """

    def __init__(self, what: str, todo: str = "", details: str = "") -> None:
        """Make an error of its three parts."""
        super().__init__(what)
        self.what = what
        self.todo = todo
        self.details = details

    def __str__(self) -> str:
        """Return all three parts, a line or block each."""
        return "\n".join(part for part in (self.what, self.details, self.todo) if part)
