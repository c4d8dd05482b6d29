"""The version of each rule: raised by one whenever what the rule computes changes, so that older rows of results are known."""

# "nets" and "convex" are those of `Preconditioned`, "inference" is that of posteriors and Algorithm 1.
RULES = {
    "rate-free": 6,
    "nets": 2,
    "convex": 2,
    "paper": 1,
    "minimize": 2,
    "inference": 1,
    "spectrum": 1,
    "trace": 1,
    "density": 1,
    "tracker": 1,
}


def versioned(rule: str) -> str:
    """A rule and its present version, as rows of results name it.

    >>> versioned("rate-free").split()[0], versioned("")
    ('rate-free', '')
    """
    return f"{rule} {RULES[rule]}" if rule else ""
