"""The paper's evaluation, figure by figure: *paper / ours / error* (``minipaged paper``).

=================== =============================================================================
``published``       what the paper's figures show
``comparison``      a number of the paper's beside ours, verdicts, tables, CSV files
``reasons``         why a number of ours is not the paper's
``jobs``            one simulation, as plain data
``observers``       what is measured in it beside what every run reports
``sweep``           many simulations at once
``store``           results that are kept
``knees``           the request rate at a stated latency
``panels``          the latency curves, as data
``latency_curves``  figures 12, 14, 16 and 17
``saturated``       the runs of figures 2 and 13
``block_sizes``     latency over the size of blocks: figures 18b and 19b
``table1``          table 1
``fig1``, …         a module a figure: ``compute`` and ``draw``
``claims``          what the text says, what its curves say, what ours say
``claimed``         the claims, one by one
``study``           how a reproduction is run, and what a figure is
``figures``         all of them, by name
``style``           the look of the figures
=================== =============================================================================
"""
