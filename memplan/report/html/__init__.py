"""The HTML report: what does the memory of a whole step look like?

Takes an ``Analysis``, and a frontier if there is one. Gives one self-contained page: ``page`` the
sections, ``chart`` the timeline, ``assets/`` the script and the style.
"""
