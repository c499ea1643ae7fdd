"""The answer of ``check`` where people and services read it.

Takes a ``CheckResult`` and the name of a format, gives text: ``formats`` knows all of them.
``findings`` says once what is reported, how bad it is and where it stands; ``annotations``
(GitHub), ``code_quality`` (GitLab), ``junit``, ``markdown`` and ``benchmark`` are its spellings.
Names come from files that others wrote: every format escapes what it would take for its own.
"""
