"""The launcher `sirtakirun`: starts the ranks of a job, labels their output, ends them together.

Three kinds of process make a job::

    sirtakirun ── mpiexec ─┬─ anchor ── supervisor ── rank 0's command
        ▲                  └─ anchor ── supervisor ── rank 1's command
        └──────── one TCP connection per rank ───┘

``mpiexec`` places processes on hosts and gives each its MPI identity, nothing else. Output, exit codes
and orders to end travel over the supervisors' connections, so they behave alike under every MPI. As MPI
sees it, a rank is its anchor, and all anchors live until the job is over: that is why no MPI ends the
survivors of a failed rank before they have spoken.

Nothing here imports more than the standard library and `sirtaki.errors`: a launcher starts at once.
"""
