"""The exceptions whose message is meant for the person at the terminal."""


class SpecamortError(Exception):
    """Something the user can mend: one sentence, naming the file and key and what to do."""


class Unreadable(SpecamortError):
    """The filesystem did not give a file: that says nothing of what is in it."""
