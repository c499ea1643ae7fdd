"""The HTML reports: what does the memory of a whole step look like, and what do many plans cost?

Takes an ``Analysis``, and a frontier if there is one, or a ``Sweep``. Gives a self-contained page:
``page`` and ``sweep`` the sections, ``chart`` the timeline, ``curves`` figures with lines,
``document`` the frame, ``assets/`` the script and the style.
"""
