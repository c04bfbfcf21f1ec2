"""Plants bugs in the core, one at a time, and sees the suite find each: a test that cannot fail proves nothing.

    make mutants                      all of them
    python tests/mutants.py NAME …    some

Each mutant is one replaced piece of source in a copy of the package; the tests run on the copy. A mutant that every test
passes is a hole in the suite, and this program fails. So does a mutant whose piece of source is no longer there.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headgate"


class Mutant(NamedTuple):
    name: str
    file: str
    was: str
    becomes: str
    breaks: str  #: the claim that is no longer true


MUTANTS = [
    Mutant(
        "id-hands-out-what-has-ended",
        "kernel/commands/permits.py",
        "return not permit.ended and (not permit.leased or permit.ends > now)",
        "return True",
        "an id whose permit has ended is a new admission",
    ),
    Mutant(
        "id-hands-out-an-expired-lease",
        "kernel/commands/permits.py",
        "return not permit.ended and (not permit.leased or permit.ends > now)",
        "return not permit.ended",
        "an id whose lease has expired is a new admission",
    ),
    Mutant(
        "late-request-is-admitted",
        "kernel/commands/admit.py",
        "return attempt_over(self.gate, id) if not attempt or attempt in known.attempts.split() else None",
        "return attempt_over(self.gate, id) if not attempt else None",
        "a request that arrives again after its permit ended admits nothing",
    ),
    Mutant(
        "late-request-after-another-permit-is-admitted",
        "kernel/commands/admit.py",
        "                bury_attempts(records, self.id)\n",
        "                pass\n",
        "a request that arrives again after another permit took the place of its own admits nothing",
    ),
    Mutant(
        "overtaking-cancel-is-forgotten",
        "kernel/commands/settle.py",
        "        if not self.answered:\n            bury(",
        "        if False:\n            bury(",
        "a cancel that overtakes its ask wins",
    ),
    Mutant(
        "cancel-takes-from-others",
        "kernel/commands/settle.py",
        "else alive and permit.attempts == attempt:",
        "else alive:",
        "a cancel takes nothing from another ask under the same id",
    ),
    Mutant(
        "cancel-removes-anothers-ticket",
        "kernel/commands/settle.py",
        "if ticket is not None and ticket.attempt == attempt:",
        "if ticket is not None:",
        "a cancel leaves the ticket of a later ask under the same id",
    ),
    Mutant(
        "late-end-ends-another-permit",
        "kernel/commands/settle.py",
        "if permit.ended or (self.fence and permit.fence != self.fence):",
        "if permit.ended:",
        "a late release ends no other permit under the same id",
    ),
    Mutant(
        "pending-release-ends-another-permit",
        "kernel/commands/settle.py",
        "        if not ago or self.policy.waiting",
        "        if ago or self.policy.waiting",
        "a release by id that is told late ends no permit that was granted after it was said",
    ),
    Mutant(
        "late-renewal-takes-another-lease",
        "kernel/commands/renew.py",
        "if permit is not None and (permit.ended or permit.fence != fence):",
        "if permit is not None and permit.ended:",
        "a late renewal takes no other permit's lease",
    ),
    Mutant(
        "window-without-slack",
        "kernel/limits/window.py",
        "self.span = -(-(self.per + self.slack) // self.grid) * self.grid",
        "self.span = -(-self.per // self.grid) * self.grid",
        "arrivals that are delayed unevenly are within the limit in any window",
    ),
    Mutant(
        "window-one-too-many",
        "kernel/limits/window.py",
        "if total + held + cost <= value and start <= now and not promised:",
        "if total + held <= value and start <= now and not promised:",
        "never more than the limit in any window",
    ),
    Mutant(
        "window-confirmed-too-early",
        "kernel/limits/window.py",
        "-(-(now + self.per) // grid) * grid",
        "-(-(at + self.per) // grid) * grid",
        "what is confirmed counts until `per` after that",
    ),
    Mutant(
        "stamp-leaves-the-charge-where-it-was",
        "kernel/commands/stamp.py",
        "step.limit.restamp(records, now, step.member, step.cost, step.value, at, sent)",
        "now",
        "a stamped call counts from when it is written",
    ),
    Mutant(
        "stamp-counts-as-fresh-for-the-whole-slack",
        "kernel/plan.py",
        "// FRESH for step in rates",
        "for step in rates",
        "a grant is fresh for a quarter of the slack",
    ),
    Mutant(
        "stamp-forgets-the-old-slot",
        "kernel/limits/window.py",
        "moved = self._move(records, member, cost, was, None)",
        "moved = cost",
        "a stamp moves the charge: it does not count twice",
    ),
    Mutant(
        "stamp-of-what-has-stopped-counting-goes-at-once",
        "kernel/limits/window.py",
        "        # It had stopped counting, so others may have been granted since what it stood for.\n"
        "        return self.earliest(records, now, member, 0.0, value, now)",
        "        return now",
        "a call that is written after its charge stopped counting waits for room",
    ),
    Mutant(
        "stamp-on-a-filled-bucket-goes-at-once",
        "kernel/limits/bucket.py",
        "return now if over <= DUST else until + ceil((used + held - usable) * per_unit)",
        "return now",
        "a bucket that others have filled makes a late call wait",
    ),
    Mutant(
        "stamp-takes-a-drained-bucket-for-full",
        "kernel/limits/bucket.py",
        "counts = min(cost, level if at >= last else min(level, _least(floor, at)))",
        "counts = min(cost, level)",
        "of an old charge counts what the level never fell below",
    ),
    Mutant(
        "stamp-stays-in-its-period",
        "kernel/limits/quota.py",
        "if all(first in charged for first in self._binding(sent)):",
        "if charged:",
        "a quota counts a late call in the period in which it is written",
    ),
    Mutant(
        "stamp-is-not-on-record",
        "kernel/commands/stamp.py",
        "        self._mark(records, steps, permit, sent)\n",
        "",
        "the end of a stamped permit finds its charge where that is now",
    ),
    Mutant(
        "stamp-without-a-lease",
        "kernel/commands/stamp.py",
        "not lives(records, now, steps, id) and not granted < lost_before(records)",
        "False",
        "a permit that has lost its lease must not be sent",
    ),
    Mutant(
        "stamp-breaks-a-promise",
        "kernel/commands/stamp.py",
        "go_at, last = earliest(records, now, rates, now)\n        if go_at",
        "go_at, last = now, None\n        if go_at",
        "a promise that is stamped late breaks no other",
    ),
    Mutant(
        "script-stamps-without-moving",
        "stores/redis/lua/commands/stamp.lua",
        "local moment = step.limit:restamp(now, step.member, step.cost, step.value, at, sent)",
        "local moment = now",
        "the script stamps as the core does",
    ),
    Mutant(
        "bucket-without-slack",
        "kernel/limits/bucket.py",
        "return self.burst * (value / self.limit) - value / self.per * self.slack, self.per / value",
        "return self.burst * (value / self.limit), self.per / value",
        "a bucket uses burst - rate × slack",
    ),
    Mutant(
        "bucket-refund-above-burst",
        "kernel/limits/bucket.py",
        "back = min(cost, level if at >= last else min(level, _least(floor, at)))",
        "back = cost",
        "what is given back is capped at burst",
    ),
    Mutant(
        "promise-breaks-a-promise",
        "kernel/limits/bucket.py",
        "best = NEVER  # this promise would be broken: not before it",
        "pass",
        "a promise is kept: no later ask is put before it that breaks it",
    ),
    Mutant(
        "quota-forgets-the-reset-slack",
        "kernel/limits/quota.py",
        "if at >= end - self.slack:",
        "if at >= end:",
        "around a reset both periods bind",
    ),
    Mutant(
        "concurrency-one-too-many",
        "kernel/limits/concurrency.py",
        "value += DUST - 1.0",
        "value += DUST",
        "live leases never exceed the limit",
    ),
    Mutant(
        "every-refusal-shrinks",
        "kernel/limits/aimd.py",
        "if granted <= shrunk:",
        "if granted < 0:",
        "26 refusals of one congestion are one shrink",
    ),
    Mutant(
        "growth-by-the-moment",
        "kernel/limits/aimd.py",
        "if 2 * peak >= working and working < maximum:",
        "if 2 * in_use >= working and working < maximum:",
        "what counts is the most that was in use since the last move",
    ),
    Mutant(
        "probing-forgets-its-ceiling",
        "kernel/limits/probing.py",
        "max(ceiling, after + 1), rounds, now, took",
        "0, rounds, now, took",
        "it stays below where refusals began",
    ),
    Mutant(
        "probing-is-never-patient",
        "kernel/limits/probing.py",
        "min(2 * rounds, self.probe_most)",
        "rounds",
        "after a probe that was refused it waits twice as long",
    ),
    Mutant(
        "probing-listens-to-the-old",
        "kernel/limits/probing.py",
        "if granted <= shrunk:",
        "if granted < 0:",
        "what was granted before a shrink says nothing",
    ),
    Mutant(
        "share-of-the-maximum",
        "kernel/limits/concurrency.py",
        "return float(min(max(1.0, round(working * self.share, 9)), value))",
        "return value",
        "a class's share of an adaptive limit is a share of the working limit",
    ),
    Mutant(
        "class-without-a-slot",
        "kernel/limits/concurrency.py",
        "min(max(1.0, round(working * self.share, 9)), value)",
        "min(round(working * self.share, 9), value)",
        "a class keeps one slot, however low the working limit is",
    ),
    Mutant(
        "looks-at-the-dead",
        "kernel/commands/peek.py",
        "if now >= due_at and head.tickets:",
        "if False:",
        "a look leaves out the waiters of a dead process",
    ),
    Mutant(
        "looks-touch",
        "kernel/commands/peek.py",
        "view, below = Overlay(records, head, FORGETTING), records",
        "view = below = records",
        "a look changes nothing",
    ),
    Mutant(
        "overlay-shows-the-deleted",
        "kernel/overlay.py",
        "while pair is not None and pair[1] in self._hidden:",
        "while False:",
        "what a look ends is over for the rest of the look",
    ),
    Mutant(
        "the-line-takes-no-time",
        "kernel/ahead.py",
        "then = limit.after(records, now, step.member, step.cost, step.value, count, size)",
        "then = limit.after(records, now, step.member, step.cost, step.value, 0, size)",
        "an ask behind a line is told when those ahead have gone",
    ),
    Mutant(
        "window-forgets-its-rounds",
        "kernel/limits/window.py",
        "return self._stops(at, self.span) + (rounds - 1) * self.span if rounds else at",
        "return at",
        "a line that fills a window several times takes several windows",
    ),
    Mutant(
        "estimates-are-exact",
        "kernel/ahead.py",
        "EXACT if ahead.alike and waits <= 1 and not (far or plan.lease) else ESTIMATE",
        "EXACT",
        "an estimate is called one",
    ),
    Mutant(
        "lanes-ahead-all-at-once",
        "kernel/ahead.py",
        "return Ahead(min(tickets, lanes * (mine + 1)), mine, size, False)",
        "return Ahead(tickets, mine, size, False)",
        "the first ask of a tenant is told its fair turn",
    ),
    Mutant(
        "stale-keys-first",
        "kernel/limits/bucket.py",
        "return float(max(0.0, state[1] - max(0, now - state[2]) / state[4][0]) + state[3])",
        "return 0.0 - float(state[1])",
        "the keys that use most of a limit are found",
    ),
    Mutant(
        "waiters-all-at-once",
        "kernel/commands/peek.py",
        "at = goes_at + pace",
        "at = goes_at",
        "waiters go one after the other",
    ),
    Mutant(
        "promised-is-used",
        "kernel/limits/window.py",
        "used = max(0.0, total + state[3] - to_come)",
        "used = max(0.0, total + state[3])",
        "what is promised is told apart from what counts",
    ),
    Mutant(
        "late-release-counts",
        "kernel/commands/settle.py",
        "if leases.get(id) is None:\n                alive = False",
        "if False:\n                alive = False",
        "the release of an expired lease changes nothing, and says so",
    ),
    Mutant(
        "expired-lease-renews",
        "kernel/commands/renew.py",
        "if not at < before if row is None else read_lease(row).fence != fence:",
        "if row is not None and read_lease(row).fence != fence:",
        "a late renewal of an expired lease changes nothing, and says so",
    ),
    Mutant(
        "another-epoch-unnoticed",
        "kernel/commands/base.py",
        "records.seen = max(seen, head.seq + 1) if is_another(head.epoch, told) else seen",
        "records.seen = seen",
        "state that was made anew is noticed however far it has grown",
    ),
    Mutant(
        "loss-made-up-for-by-every-process",
        "kernel/commands/base.py",
        "elif not head.lost_before:",
        "elif True:",
        "a loss is made up for once",
    ),
    Mutant(
        "late-holder-does-not-return",
        "kernel/commands/base.py",
        "return head.lost_before if head.lost or is_another(head.epoch, records.told) else 0",
        "return head.lost_before if head.lost else 0",
        "a holder that comes back after the loss is made up for has its slot again",
    ),
    Mutant(
        "lease-of-this-epoch-returns",
        "kernel/commands/base.py",
        "head.lost_before = began_at(head.epoch)",
        "head.lost_before = now",
        "a lease that has ended in the new state does not come back",
    ),
    Mutant(
        "id-forgotten",
        "kernel/commands/admit.py",
        "if self.remembered and (reply := self._known(now, records)) is not None:",
        "if False and (reply := self._known(now, records)) is not None:",
        "the same ask id twice is one admission",
    ),
    Mutant(
        "time-runs-back",
        "kernel/commands/base.py",
        "_begin_otherwise(max(now, head.now), records)",
        "_begin_otherwise(now, records)",
        "time never goes back",
    ),
    Mutant(
        "pause-ignored",
        "kernel/commands/admit.py",
        "if paused > now:\n            at, last = earliest_now(records, now, steps)",
        "if False:\n            at, last = earliest_now(records, now, steps)",
        "no grants while a gate is paused",
    ),
    Mutant(
        "override-of-a-key-ignored",
        "kernel/overrides.py",
        'return (base, f"{base}|{key}") if bar else (base,)',
        "return (base,)",
        "an override for one key governs the next decision about it",
    ),
    Mutant(
        "promise-passes-by-room",
        "kernel/limits/window.py",
        "self.least = max(self.least, min(self.cost, left)) if covered else self.cost",
        "self.least = 0.0",
        "a promise in a window is the earliest that breaks nothing: room that is left is not passed by",
    ),
    Mutant(
        "front-miscounted",
        "kernel/limits/window.py",
        "(front[0], front[1] + cost, *front[2:]) if at <= front[0] < stops else front for front in fronts",
        "front for front in fronts",
        "what is charged before a moment counts there, when the search for a promise begins there",
    ),
    Mutant(
        "given-back-and-not-found",
        "kernel/limits/window.py",
        "(*front[:3], max(front[3], stops)) for front in _fronts(slots) if front[0] >= stops",
        "front for front in _fronts(slots)",
        "what a cancelled promise has given back is found by the next ask",
    ),
    Mutant(
        "bucket-passes-by-room",
        "kernel/limits/bucket.py",
        "claim = min(cost, claim + 2 * DUST)",
        "claim = 0.0",
        "a promise on a bucket is the earliest that breaks nothing: room that is left is not passed by",
    ),
    Mutant(
        "tail-taken-for-exact",
        "kernel/limits/bucket.py",
        "exact and at == tail_at",
        "exact",
        "a promise before others does not make a later one be told too late",
    ),
    Mutant(
        "override-without-end",
        "kernel/overrides.py",
        "    while first is not None and first[0] <= now:\n        _, member = first\n",
        "    while first is not None and first[0] < now:\n        _, member = first\n",
        "an override ends at its time, not after it",
    ),
    Mutant(
        "waiters-sleep-through-the-end-of-an-override",
        "kernel/line.py",
        'clocks = (*clocks, "terms")',
        "pass",
        "a waiter goes when what lowered the limit ends",
    ),
    Mutant(
        "tightening-raises",
        "kernel/overrides.py",
        "value = min(value, round(rows[0][0] * share, 9))",
        "value = round(rows[0][0] * share, 9)",
        "a tightening never raises what an operator has lowered further",
    ),
    Mutant(
        "tightening-ends-a-longer-one",
        "kernel/overrides.py",
        "rows = [row for row in before if row[0] < value or row[1] > ends]",
        "rows = [row for row in before if row[0] < value]",
        "a tightening that is lower and shorter does not end a longer one",
    ),
    Mutant(
        "tightening-forgotten-by-the-reaper",
        "kernel/overrides.py",
        'overrides.get(one) is not None or terms.get(f"<{one}") is not None for one in',
        "overrides.get(one) is not None for one in",
        "a bucket under a tightening is not forgotten before it has run off",
    ),
    Mutant(
        "overtaking",
        "kernel/line.py",
        "blocked.append((tier, max(0, step.rank)))",
        "_park(records, lane, step.member, at)",
        "a large ask at the head is waited for, not overtaken",
    ),
    Mutant(
        "call-kept-for-ever",
        "kernel/line.py",
        "    while calls and (first := calls.first()) is not None and first[0] <= now:",
        "    while calls and (first := calls.first()) is not None and first[0] <= 0:",
        "a call that is not taken is given back",
    ),
    Mutant(
        "the-dead-stay-in-line",
        "kernel/line.py",
        "    while (first := sessions.first()) is not None and first[0] <= now:",
        "    while (first := sessions.first()) is not None and first[0] <= 0:",
        "a waiter whose process died leaves the line by itself",
    ),
    Mutant(
        "no-patience",
        "kernel/line.py",
        "    while (first := young.first()) is not None and first[0] <= now:",
        "    while (first := young.first()) is not None and first[0] <= 0:",
        "a ticket older than patience counts as the highest class",
    ),
    Mutant(
        "lanes-do-not-take-turns",
        "kernel/line.py",
        "_make_ready(records, lane, tag + weight)",
        "_make_ready(records, lane, tag)",
        "lanes take turns by virtual time advanced by cost",
    ),
    Mutant(
        "share-charged-to-one-class",
        "kernel/plan.py",
        "if at <= rank and share < 1.0:",
        "if at == rank and share < 1.0:",
        "a class, together with those below it, uses at most its share",
    ),
    Mutant(
        "line-not-served-after-a-confirmation",
        "kernel/line.py",
        "return not plan.lane and now < line_state(records).timer_at <= now + plan.template.soonest",
        "return now < line_state(records).timer_at",
        "what a confirmation gives back is used as soon as it is free",
    ),
    Mutant(
        "line-not-served-for-a-new-lane",
        "kernel/line.py",
        "if woke or not (known and behind) or now >= timer_at:",
        "if woke or not known or now >= timer_at:",
        "the first of a lane is looked at when it comes",
    ),
    Mutant(
        "line-lets-the-asker-take-out-of-turn",
        "kernel/line.py",
        "if asker is not None and ticket.id == own:",
        "if asker is not None and taken is None:",
        "whoever asks takes only what its own ticket was called for",
    ),
    Mutant(
        "line-charges-no-asker",
        "kernel/commands/admit.py",
        "        return self._grant(records, now, steps, now)\n\n    def _grant",
        "        return Grant(now, 0, records.head.seq, False, 0)\n\n    def _grant",
        "whoever is called while it asks is charged",
    ),
    Mutant(
        "line-forgets-no-asker",
        "kernel/line.py",
        "asker.take(records, now, steps)\n                _forget(records, ticket)",
        "asker.take(records, now, steps)",
        "whoever takes what it asked for has no ticket any more",
    ),
    Mutant(
        "bury-all-at-once",
        "kernel/line.py",
        "        if len(ids) > left:\n",
        "        if len(ids) > left:\n            for _, id in list(records.session_tickets[session].scan()):\n"
        "                remove(records, now, _ticket(records, id))\n            continue\n        if False:\n",
        "a dead crowd holds up no other command: so many of it leave at a time",
    ),
    Mutant(
        "bury-some-and-call-the-rest",
        "kernel/line.py",
        "    if not done:\n",
        "    if False:\n",
        "no call is made to the dead",
    ),
    Mutant(
        "bury-and-forget-the-rest",
        "kernel/line.py",
        '[(now, "", _any_waiting(records))], ((0, 0),), ("sessions",))',
        '[(now + 3600 * SECOND, "", _any_waiting(records))], ((0, 0),), ())',
        "the rest of a dead crowd leaves by the next commands",
    ),
    Mutant(
        "bury-in-silence",
        "kernel/line.py",
        "        if ids:\n            # Should it live",
        "        if False:\n            # Should it live",
        "a process that was taken for dead and lives is told",
    ),
    Mutant(
        "heartbeat-serves-no-line",
        "kernel/commands/renew.py",
        "            if woke or now >= line.line_state(records).timer_at:",
        "            if woke or (self.tickets and now >= line.line_state(records).timer_at):",
        "a heartbeat without tickets serves the line",
    ),
    Mutant(
        "kinds-unchecked-behind-the-line",
        "kernel/commands/admit.py",
        "            check_kinds(records, steps)\n        else:",
        "            pass\n        else:",
        "an ask of another kind is refused at once, also behind others",
    ),
    Mutant(
        "kinds-unchecked-in-a-pause",
        "kernel/commands/admit.py",
        "            at, last = earliest_now(records, now, steps)\n            if at <= paused:",
        "            at = paused\n            if at <= paused:",
        "an ask of another kind is refused at once, also in a pause",
    ),
    Mutant(
        "kinds-unchecked-at-a-call",
        "kernel/commands/admit.py",
        "            check_kinds(records, steps)  # another version",
        "            # another version",
        "a call is not taken with another kind",
    ),
    Mutant(
        "kinds-fail-everybody",
        "kernel/line.py",
        "        except KindChanged:  # since it came",
        "        except ZeroDivisionError:  # since it came",
        "a ticket that has become another kind fails nobody else",
    ),
    Mutant(
        "kinds-wake-nobody",
        "kernel/line.py",
        "    records.wakes.append(Wake(ticket.session, ticket.id))\n    return line_state(records)",
        "    return line_state(records)",
        "the waiter of a ticket that has become impossible is told",
    ),
    Mutant(
        "kinds-settled-late",
        "kernel/commands/settle.py",
        "if limit.leased or is_another_kind(records, step):",
        "if limit.leased:",
        "what is settled late changes nothing for another kind",
    ),
]

#: Bugs in the script that decides on a Redis server: name, file, what is replaced, and by what. Each breaks the same claim.
SCRIPT = [
    ("lets-the-last-in-first", "line/standing", "queue:put(ticket.id, false, ticket.arrival)",
     "queue:put(ticket.id, false, -ticket.arrival)"),
    ("overtakes-who-is-parked", "line/serving", "_ahead(steps, _order(lane, space('lanes'):get(lane)[1]))", "nil"),
    ("forgets-who-is-parked-behind", "line/standing", "due:put(row[2], 1, 0)", "due:put(row[2], 1, NEVER)"),
    ("wakes-no-sleeping-ticket", "line/sessions", "if ticket.hidden == ASLEEP then", "if ticket.hidden == 9 then"),
    ("skips-nobody-after-a-missed-call", "line/serving", "_put_to_sleep(ticket.session)\n", "\n"),
    ("leaves-the-timer-to-the-called", "line/serving", "if busy_sessions[holder.session] then", "if false then"),
    ("ends-patience-without-promotion", "line/serving", "_leave(ticket)\n  ticket.tier = 0\n", "_leave(ticket)\n"),
    ("moves-a-turn-twice", "line/standing", "_make_ready(lane, tag + ticket.weight)",
     "_make_ready(lane, tag + 2 * ticket.weight)"),
    ("lets-who-comes-back-begin-afresh", "line/standing", "max(line_state().turns[ticket.tier + 1], rest:get(lane) or 0)",
     "0"),
    ("keeps-no-line-state", "line/state", "if state_changed then\n", "if false then\n"),
    ("takes-back-no-call-at-a-reset", "changes", "if head.tickets > 0 then line_module().take_back(now) end", ""),
    ("counts-a-hold-as-nothing", "plan", "hold(now, step.member, step.cost, lease)", "hold(now, step.member, 0, lease)"),
    ("remembers-no-id", "commands/admit", "if permit_lives(known, now) then return again", "if false then return again"),
    ("hands-out-what-has-ended", "commands/base", "return not permit[6] and (not permit[5] or permit[3] > now)",
     "return true"),
    ("forgets-what-was-cancelled", "commands/settle", "      if not answered then bury(name, now) end\n      return 0",
     "      return 0"),
    ("forgets-a-cancel-that-was-first", "commands/settle",
     "if not permit and reply % 2 == 1 and not answered then bury(name, records.head.now) end", ""),
    ("cancels-for-all", "commands/settle", "or alive and attempts == attempt then", "or alive then"),
    ("ends-what-is-anothers", "commands/settle", "fence ~= 0 and permit[4] ~= fence", "false"),
    ("admits-late-ones-after-another", "commands/admit", "      bury_attempts(id)\n", ""),
    ("charges-no-asker", "line/serving", "asker.take(steps)\n", "asker.has_taken, asker.reply = true, {now, 0, 0, 0, 1}\n"),
    ("buries-more-at-once", "line/serving", "for at = 1, min(left, #found) do", "for at = 1, #found do"),
    ("calls-the-dead", "line/serving", "if not _bury(now) then", "if not _bury(now) and false then"),
    ("buries-in-silence", "line/serving", "    if found[1] then\n", "    if false then\n"),
    ("lets-another-kind-stand", "commands/admit", "    check_kinds(steps)\n  else", "  else"),
    ("fails-all-for-another-kind", "line/serving", "elseif not member and any_of_another_kind(steps) then",
     "elseif false then"),
    ("grows-by-the-moment", "concurrency", "if 2 * peak >= working and", "if 2 * in_use >= working and"),
    ("probes-without-waiting", "concurrency", "working >= ceiling - 1 and rounds * working or 1", "false or 1"),
    ("halves-no-more", "concurrency", "fell and floor(height / 2) or floor(7 * height / 8)", "floor(7 * height / 8)"),
    ("settles-another-kind", "commands/settle", "if limit.leased or is_another_kind(step) then", "if limit.leased then"),
]  # fmt: skip
MUTANTS += [
    Mutant(f"script-{name}", f"stores/redis/lua/{file}.lua", was, becomes, "the script decides as the core does")
    for name, file, was, becomes in SCRIPT
]

TESTS = [
    "tests/testing/test_limit_suite.py",
    "tests/testing/test_store_suite.py",
    *(
        f"tests/kernel/test_{topic}.py"
        for topic in (
            "ids",
            "serving",
            "line",
            "promises",
            "many_promises",
            "endings",
            "adaptive",
            "probing",
            "calendar",
            "loss",
            "limits",
            "looks",
        )
    ),
    *(f"tests/gate/test_{topic}.py" for topic in ("gate", "inspection", "permit", "bad_input")),
]

#: What holds the script that decides on a Redis server to the core.
AGREEMENT = ["tests/stores/redis/test_agreement.py"]


def misses(mutant: Mutant) -> str | None:
    """Why it cannot be planted, if it cannot."""
    times = (PACKAGE / mutant.file).read_text(encoding="utf-8").count(mutant.was)
    if times == 1 or not mutant.was:
        return None
    return f"{mutant.name}: {mutant.file} has {times} times what is to be replaced; mend MUTANTS"


def planted(mutant: Mutant, into: Path) -> None:
    shutil.copytree(PACKAGE, into / "headgate", ignore=shutil.ignore_patterns("__pycache__"))
    file = into / "headgate" / mutant.file
    source = file.read_text(encoding="utf-8")
    if not mutant.was:
        return
    if (why := misses(mutant)) is not None:
        sys.exit(why)
    file.write_text(source.replace(mutant.was, mutant.becomes), encoding="utf-8")


def found(mutant: Mutant) -> str | None:
    """The test that fails on the mutant, or None: it survived."""
    with tempfile.TemporaryDirectory() as directory:
        planted(mutant, Path(directory))
        # Failing is all that is asked for: no time is spent on making the example small.
        env = {**os.environ, "PYTHONPATH": directory, "HYPOTHESIS_PROFILE": "mutants", "PYTHONDONTWRITEBYTECODE": "1"}
        for test in AGREEMENT if mutant.file.endswith(".lua") else TESTS:
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "not sqlite", test]
            run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
            if run.returncode not in (0, 5):
                failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return failed[0].split(" - ")[0] if failed else f"{test} (exit {run.returncode})"
    return None


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        sys.exit(f"there is no mutant {', '.join(sorted(unknown))}")
    if (broken := found(Mutant("none", "kernel/plan.py", "", "", ""))) is not None:
        sys.exit(f"the suite fails without any mutant: {broken}")
    survivors = []
    for number, mutant in enumerate(chosen, 1):
        began = time.monotonic()
        test = found(mutant)
        told = test or f"SURVIVED: nothing shows that {mutant.breaks}"
        sys.stdout.write(f"{number:2}/{len(chosen)} {mutant.name:32} {time.monotonic() - began:5.1f} s  {told}\n")
        sys.stdout.flush()
        if test is None:
            survivors.append(mutant.name)
    sys.stdout.write(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants found\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
