"""The answer of ``check`` where people and services read it.

Takes a ``CheckResult`` and the name of a format, gives text: ``formats`` knows all of them. A
finding is said by the lines of the text report, in a comment for a pull request (``markdown``) and
in what ``services`` take. Names come from files that others wrote: every format escapes what it
would take for its own.
"""
