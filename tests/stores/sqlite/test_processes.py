"""Processes that share a SQLite file: killed, started together, forked, interrupted."""

from __future__ import annotations

import signal
import time

from headgate import Concurrency, Window
from headgate.kernel.commands import Peek
from headgate.kernel.plan import Policy
from headgate.stores.sqlite import SqliteStore
from tests.support.sqlite import check_integrity, line_of, python, told

# --- processes --------------------------------------------------------------------------------------------------------

WORK = """
    import sys
    from headgate.kernel.commands import Admit, Settle
    from headgate.limits import Bucket, Concurrency, Window
    from headgate.kernel.plan import Policy
    from headgate.stores.sqlite import SqliteStore
    store = SqliteStore(sys.argv[1])
    plan = Policy("g", [Window(10**9, per="1m"), Concurrency(10**6, lease="1h")]).plan()
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        at, _, fence, _, _ = store.decide(Admit(plan, f"{store.session}-{number}", None, plan.lease))
        if number % 3:
            store.decide(Settle(plan, at, f"{store.session}-{number}", "ok", False))
        print(fence, flush=True)
    """


def test_a_kill_at_any_moment_loses_nothing_that_was_told(path: str) -> None:
    last = 0
    for _ in range(4):
        workers = [python(WORK, path) for _ in range(2)]
        for worker in workers:
            assert line_of(worker) == "ready"
            assert int(line_of(worker)) > last
        time.sleep(0.15)
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
        for worker in workers:
            printed, _ = worker.communicate()
            # Of the first line, a part has been read already.
            last = max([last, *(int(line) for line in printed.split("\n")[1:-1])])
        store = SqliteStore(path)
        policy = Policy("g", [Window(10**9, per="1m"), Concurrency(10**6, lease="1h")])
        assert store.decide(Peek(policy)).seq >= last
        store.close()
        check_integrity(path)


def test_processes_together_get_no_more_than_the_limit(path: str) -> None:
    script = """
        import sys
        from headgate.kernel.commands import Admit
        from headgate.limits import Window
        from headgate.kernel.plan import Policy
        from headgate.stores.sqlite import SqliteStore
        store = SqliteStore(sys.argv[1])
        command = Admit(Policy("g", [Window(300, per="1h", slack=0)]).plan())
        print(sum(isinstance(store.decide(command), tuple) for _ in range(200)))
        """
    assert sum(int(told(worker)) for worker in [python(script, path) for _ in range(4)]) == 300


def test_many_who_open_a_new_file_at_once_all_get_it(path: str) -> None:
    script = """
        import sys
        from headgate.kernel.commands import Admit
        from headgate.limits import Bucket
        from headgate.kernel.plan import Policy
        from headgate.stores.sqlite import SqliteStore
        sys.stdin.readline()
        store = SqliteStore(sys.argv[1])
        print(store.decide(Admit(Policy("g", [Bucket(10**9, per="1s")]).plan()))[2])
        """
    workers = [python(script, path) for _ in range(8)]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    assert sorted(int(told(worker)) for worker in workers) == [1, 2, 3, 4, 5, 6, 7, 8]


# --- fork -------------------------------------------------------------------------------------------------------------

FORK = """
    import os, sys
    from headgate.kernel.commands import Admit, Peek
    from headgate.limits import Bucket
    from headgate.kernel.plan import Policy
    from headgate.sqlite_file import wake_folder
    from headgate.stores.sqlite import SqliteStore
    store = SqliteStore(sys.argv[1])
    policy = Policy("g", [Bucket(10**9, per="1s")])
    command = Admit(policy.plan())
    store.listen("ticket", print)
    for _ in range(20):
        store.decide(command)
    session = store.session
    read, write = os.pipe()
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        assert store.session != session
        for _ in range(50):
            store.decide(command)
        store.listen("ticket", print)
        os.write(write, b"x")
        os.read(wait, 1)               # the parent closes its store, and the log stays
        for _ in range(30):
            store.decide(command)
        store.close()
        os._exit(0)
    assert store.session == session
    for _ in range(50):
        store.decide(command)
    os.read(read, 1)
    sockets = os.listdir(wake_folder(sys.argv[1]))
    assert len(sockets) == 2 and session + ".sock" in sockets, sockets
    store.close()
    os.write(go, b"x")
    assert os.waitpid(child, 0)[1] == 0
    print(store.decide(Peek(policy)).seq)
    """


def test_after_a_fork_parent_and_child_each_have_a_file_a_socket_and_a_session(path: str) -> None:
    assert told(python(FORK, path)).strip() == "150"
    check_integrity(path)


def test_a_fork_while_other_threads_decide_leaves_both_working(path: str) -> None:
    script = """
        import os, sys, threading
        from headgate.kernel.commands import Admit, Peek
        from headgate.limits import Bucket
        from headgate.kernel.plan import Policy
        from headgate.stores.sqlite import SqliteStore
        store = SqliteStore(sys.argv[1])
        policy = Policy("g", [Bucket(10**9, per="1s")])
        command = Admit(policy.plan())
        counts = []
        over = False
        def work():
            count = 0
            while not over:
                store.decide(command)
                count += 1
            counts.append(count)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        for _ in range(15):
            child = os.fork()
            if child == 0:
                for _ in range(5):
                    store.decide(command)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        over = True
        for thread in threads: thread.join()
        print(store.decide(Peek(policy)).seq - sum(counts))
        """
    assert told(python(script, path)).strip() == str(15 * 5)
    check_integrity(path)


def test_ctrl_c_at_any_moment_leaves_a_store_that_works(path: str) -> None:
    script = """
        import signal, sys, threading
        from headgate.kernel.commands import Admit, Peek, Settle
        from headgate.limits import Bucket, Concurrency
        from headgate.kernel.plan import Policy
        from headgate.stores.sqlite import SqliteStore
        store = SqliteStore(sys.argv[1])
        plan = Policy("g", [Bucket(10**9, per="1s"), Concurrency(10**6)]).plan()
        def interrupt(*_):
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, interrupt)
        number = granted = interrupted = 0
        others = []
        over = False
        def work():
            count = 0
            while not over:
                count += isinstance(store.decide(Admit(plan, f"t{count}", None, plan.lease)), tuple)
            others.append(count)
        thread = threading.Thread(target=work)
        thread.start()
        while interrupted < 400:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00005 + (number % 40) * 0.00001)
                for _ in range(3):
                    number += 1
                    store.decide(Admit(plan, f"id-{number}", None, plan.lease))
                    granted += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        over = True
        thread.join()
        seq = store.decide(Peek(plan.policy)).seq
        held = len(store.decide(Peek(plan.policy, leases=True)).leases)
        # A reply may be lost on its way to who was interrupted; nobody else's is, and nothing is half done.
        assert granted + others[0] <= seq <= granted + others[0] + interrupted, (granted, others, seq)
        assert held == seq, (held, seq)
        store.close()
        """
    told(python(script, path))
    check_integrity(path)
