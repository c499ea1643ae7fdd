"""The HTML report: what does the memory of a whole step look like?

Takes an ``Analysis``, and a frontier if there is one. Gives one self-contained page: ``page`` the
first sections, ``sections`` what goes beyond the peak, ``chart`` the timeline, ``assets/`` the
script and the style.
"""
