"""The one exception whose message is meant for the person at the terminal."""


class SpecamortError(Exception):
    """Something the user can mend: one sentence, naming the file and key and what to do."""
