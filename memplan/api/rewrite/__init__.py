"""``rewrite``: a file and a budget → a file that fits.

It answers which graph keeps a budget at the least extra time. It takes a path and
``RewriteOptions`` (``goal``); it gives a ``Rewrite`` (``rewrite_result``). The story is told by
``rewriting``: read the file, plan the candidates (``candidates``, ``loop_storage``) and take the
cheapest plan (``cheapest``), apply it, check its bytes and prove it (``finish``, ``check_file``),
record how it was made (``plan_record``), write. ``replaying`` does the same for a plan that is
given.
"""
