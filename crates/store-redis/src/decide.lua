-- Executes a decision if the values are as the caller expected, and otherwise returns the current values.
--
-- KEYS[1]         the marker of the district
-- KEYS[2 .. 1+n]  the keys that the decision was based on; the first is the caller's own record
-- KEYS[2+n ..]    other keys that are written
-- ARGV[1]         the marker that the caller knows
-- ARGV[2], [3]    the time of the decision, and the time after which it is void, in microseconds of this server
-- ARGV[4]         n; negative if KEYS[3] is the index of equal arguments
-- ARGV[5 .. 4+n]  the prefix that each value must have; '' if it must be missing, '*' for any value
-- ARGV[5+n ..]    the writes
--
-- Returns its time in microseconds if the decision was executed, and the negative time if the marker is another one. If
-- the decision does not hold, it returns a list of its time, the values of KEYS[2 .. 1+n], and the value that the index
-- points to if it is none of these. Writes nothing unless the decision is executed.

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if call('GET', KEYS[1]) ~= ARGV[1] then
  return -now
end

local holds = now - ARGV[2] >= 0 and ARGV[3] - now >= 0

-- The two most frequent decisions use only the caller's own record: a claim, which needs a missing record, so
-- that the write itself can be the check, and an end. All others, and those that do not hold, take the general path.
if holds and ARGV[4] == '1' and ARGV[8] ~= '0' and not ARGV[9] then
  local want = ARGV[5]
  local what = ARGV[6]
  if want == '' and what == 'own' then
    if call('SET', KEYS[2], ARGV[7], 'PX', ARGV[8], 'NX') then
      return now
    end
  elseif want ~= '' and want ~= '*' and what == 'end' then
    if call('GETRANGE', KEYS[2], 0, #want - 1) == want then
      call('SET', KEYS[2], ARGV[7], 'PX', ARGV[8])
      call('PUBLISH', KEYS[2], '')
      return now
    end
  end
end

local looked = ARGV[4] + 0
local indexed = looked < 0
if indexed then
  looked = -looked
end
for i = 1, looked do
  if not holds then
    break
  end
  local want = ARGV[4 + i]
  if want == '' then
    holds = call('EXISTS', KEYS[1 + i]) == 0
  elseif want ~= '*' then
    holds = call('GETRANGE', KEYS[1 + i], 0, #want - 1) == want
  end
end

if not holds then
  local found = { now }
  for i = 1, looked do
    found[1 + i] = call('GET', KEYS[1 + i])
  end
  local target = indexed and found[3]
  if target then
    for i = 1, looked do
      if KEYS[1 + i] == target then
        return found
      end
    end
    found[2 + looked] = call('GET', target)
  end
  return found
end

local function set(key, value, life)
  if life == '0' then
    call('SET', key, value)
  else
    call('SET', key, value, 'PX', life)
  end
end

local at = 5 + looked
local what = ARGV[at]
while what do
  if what == 'own' then -- value, lifetime in ms or 0: the caller's own record
    set(KEYS[2], ARGV[at + 1], ARGV[at + 2])
    at = at + 3
  elseif what == 'end' then -- the same, and wakes the waiters
    set(KEYS[2], ARGV[at + 1], ARGV[at + 2])
    call('PUBLISH', KEYS[2], '')
    at = at + 3
  elseif what == 'tell' then -- channel, message
    call('PUBLISH', ARGV[at + 1], ARGV[at + 2])
    at = at + 3
  else
    local key = KEYS[ARGV[at + 1] + 0]
    local value = ARGV[at + 2]
    if what == 'put' then -- value, lifetime
      set(key, value, ARGV[at + 3])
      at = at + 4
    elseif what == 'keep' then -- value, lifetime: extends the life if it is this value
      if call('GET', key) == value then
        if ARGV[at + 3] == '0' then
          call('PERSIST', key)
        else
          call('PEXPIRE', key, ARGV[at + 3])
        end
      end
      at = at + 4
    elseif what == 'head' then -- the first bytes; the rest and the lifetime stay
      call('SETRANGE', key, 0, value)
      at = at + 3
    elseif what == 'dropif' then -- value: removes it if it is this value
      if call('GET', key) == value then
        call('DEL', key)
      end
      at = at + 3
    elseif what == 'add' then -- member
      call('SADD', key, value)
      at = at + 3
    elseif what == 'remove' then -- member
      call('SREM', key, value)
      at = at + 3
    elseif what == 'drop' then
      call('DEL', key)
      call('PUBLISH', key, '')
      at = at + 2
    else -- 'wake'
      call('PUBLISH', key, '')
      at = at + 2
    end
  end
  what = ARGV[at]
end
return now
