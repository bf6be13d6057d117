"""What a submission does: its code runs in a jail; points and an executed notebook come out.

Five kinds of processes, each started by one that stands above it:

grader       the instructor's command, or nbgrader: it hands out notebooks and books the points
             (`workers.in_processes`, `workers.in_own_process`)
fork server  loads torch once, then forks zygotes and workers (forkserver.py; the grader's side is
             `warm.Warm`)
worker       reads and judges one submission after the other (`workers.work`; the grader's side is
             `workers.Worker`)
zygote       forks children; of its own forks, one is prepared for each assignment, which forks the
             children of that one (`child.zygote`; the worker's side is `remote.Zygote`)
child        holds the names that one student's notebook defines, in a jail (`child.Namespace`; the
             worker's side is `remote.Child`, and a `remote.Sandbox` has a new one where one died)
"""
