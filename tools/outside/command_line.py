from outside.tally import Tally


def check(tally: Tally) -> None: ...
