"""The judge: it runs graded tests on a submission that it never imports.

Three processes stand apart. The judge holds pytest, the oracles and the points (:mod:`run`,
:mod:`plugin`, :mod:`proxy`, :mod:`pen`). A warm parent holds the libraries and no submission; each
test gets a worker forked from it, which holds nothing but the submission (:mod:`worker`). They
speak JSON lines (:mod:`wire`).
"""
