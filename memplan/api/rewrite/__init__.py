"""``rewrite``: a file and a budget → a file that fits.

It answers which graph keeps a budget at the least extra time. It takes a path and
``RewriteOptions`` (``goal``); it gives a ``Rewrite`` (``result``). The story is told by ``run``:
read the file, plan every candidate (``candidates``, ``loops``) and take the cheapest plan
(``cheapest``, with seconds from ``seconds``), apply it, check it by simulation, record how it was
made, write. ``waterfall`` says what every step on the way saved.
"""
