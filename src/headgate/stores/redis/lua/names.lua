-- The names that the files of this folder share, declared before all of them.
--
-- On servers that know functions (Redis 7, Valkey) all this is loaded once, as a library. As a script, every call makes
-- its functions anew. A function that takes a name from the main chunk's own locals has it looked up among all of
-- those; one that is made inside another function takes it from there at once. So each part is the body of a function
-- (see script.py) that sets the names below; and what few calls need is made when it is needed.

-- redis.call, cmsgpack.pack, cmsgpack.unpack: a library has them only while it is called
local call, pack, unpacked
local format, find, floor, ceil, max, min = string.format, string.find, math.floor, math.ceil, math.max, math.min
local NEVER, SECOND, INFINITE = 9007199254740992, 1000000, math.huge
-- For how long an id is known after its end; after how many sequence numbers expired records are reaped.
local REMEMBER, REAP_EVERY = 60 * SECOND, 256
-- hg:{<gate>}, after the prefix if there is one
local TAG

-- records/
local records, states, permits, begin_records, begin_line, write_records, space, drop, names, states_there, amend, is_before
local on_a_copy
-- limits.lua, concurrency.lua
local NO_LEASE, makers, raise, kind_changed, kind_of, state_of, partition, usage_of, prune, used_up, recovered
local outcome_of, fitting
-- overrides.lua
local value_of, lifts_at, is_overridden, count_overrides, values_changed, lapse
-- plan.lua
local sent, begin_plans, policy_of, remember, limit_of, plan_for, recall, current, too_large, rounded
local earliest, earliest_now, blocked_by, charge, hold, let_go, is_another_kind, check_kinds
-- commands/
local wait_of, refusal_of, granted, too_large_text, lose, begin, pause, admit, decide_ask, settle, release, cancel, lease_of
local steps_in_force, is_another, compare, notice, lost_before, stamp
-- batch.lua
local admit_many
