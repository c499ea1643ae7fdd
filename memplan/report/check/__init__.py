"""The answer of ``check`` where people and services read it.

Takes a ``CheckResult`` and the name of a format, gives text: ``formats`` knows all of them. A
finding is said by the lines of the text report; ``findings`` adds how bad it is and where it
stands, and ``annotations`` (GitHub), ``code_quality`` (GitLab), ``junit``, ``markdown`` and
``benchmark`` are its spellings. Names come from files that others wrote: every format escapes what
it would take for its own.
"""
