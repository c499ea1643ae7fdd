"""The HTML reports: what does the memory of a whole step look like, and what do many plans cost?

Takes an ``Analysis``, and a frontier if there is one, or a ``Sweep``. Gives a self-contained page:
``page`` the first sections, ``sections`` what goes beyond the peak, ``sweep`` those of many plans,
``chart`` the timeline, ``curves`` figures with lines, ``document`` the frame, ``assets/`` script
and style.
"""
