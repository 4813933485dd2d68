-- The times of admissions, 8 bytes each. Either a list, oldest first, that is read and written whole; or a ring with a header
-- (next slot, length, newest time, units beyond), of which only the necessary entries are read and written. Reading 8 kB
-- costs ten times as much as reading one entry. The four bytes at the end distinguish a ring from a list: a limit that grows or
-- shrinks can find the other form, and writes its own. The units beyond were charged to a full log, or more were in use than a
-- lower limit: each counts as long as the oldest entry, as in tidegate-core. A log that has any is a ring.
-- numbers: limit, lifetime, 1 for a ring
local HEAD = 20
local function time_at(log, slot)
  if log.value then return (struct.unpack('<I8', log.value, log.head + 8 * slot + 1)) end
  return (struct.unpack('<I8', redis.call('GETRANGE', log.key, log.head + 8 * slot, log.head + 8 * slot + 7)))
end

-- The time of the entry of this rank; 1 is the newest.
local function newest(log, rank)
  if rank == 1 and log.last then return log.last end
  return time_at(log, (log.next - rank) % log.slots)
end

-- Writes times into the ring, starting at this slot.
local function put(log, slot, times)
  local first = 8 * (log.slots - slot)
  redis.call('SETRANGE', log.key, log.head + 8 * slot, string.sub(times, 1, first))
  if first < #times then redis.call('SETRANGE', log.key, log.head, string.sub(times, first + 1)) end
end

-- Moves entries from the clock's future to now. Otherwise they would count until the clock gets there.
local function from_future(p, log)
  if newest(log, 1) <= now then return log end
  local ahead, behind, upto = 1, log.len + 1, pxat(now + p[2])
  while behind - ahead > 1 do
    local rank = math.floor((ahead + behind) / 2)
    if newest(log, rank) > now then ahead = rank else behind = rank end
  end
  local times = string.rep(struct.pack('<I8', now), ahead)
  if log.ring then
    put(log, (log.next - ahead) % log.slots, times)
    redis.call('SETRANGE', log.key, 0, struct.pack('<I4I4I8', log.next, log.len, now))
    redis.call('PEXPIREAT', log.key, upto)
    log.last, log.value = now, log.value and redis.call('GET', log.key)
  else
    log.value = string.sub(log.value, 1, #log.value - #times) .. times
    redis.call('SET', log.key, log.value, 'PXAT', upto)
  end
  return log
end

-- The key's log, or what is wrong with the key.
local function open(p, key)
  local ring = p[3] == 1
  local log = {key = key, head = 0, next = 0, slots = 0, len = 0, live = 0, beyond = 0, over = 0}
  local value
  if ring then
    value = redis.pcall('GETRANGE', key, 0, HEAD - 1)
    if value == '' then value = false end
  else
    value = redis.pcall('GET', key)
  end
  if type(value) == 'table' then
    if string.find(value.err, 'WRONGTYPE', 1, true) then return nil, 1 end
    return nil, value
  end
  if not value then return log end
  local bytes = ring and redis.call('STRLEN', key) or #value
  log.ring = bytes % 8 == HEAD % 8
  if log.ring then log.head = HEAD end
  log.slots = (bytes - log.head) / 8
  if log.slots < 1 or log.slots % 1 > 0 then return nil, foreign(value) end
  if not ring then
    log.value = value
  elseif not log.ring then
    log.value = redis.call('GET', key)
  end
  if not log.ring then
    log.len = log.slots
    return went_back and from_future(p, log) or log
  end
  log.next, log.len, log.last, log.beyond = struct.unpack('<I4I4I8I4', value)
  if log.len < 1 or log.len > log.slots or log.next >= log.slots then return nil, foreign(value) end
  return went_back and from_future(p, log) or log
end

-- Finds how many entries count.
local function look(p, log)
  log.seen, log.newest_age, log.added = now, 0, 0
  if log.len > 0 then
    local last = newest(log, 1)
    -- Time never runs backwards.
    if last > now then log.seen = last end
    log.newest_age = log.seen - last
  end
  -- Most entries still count, so search from the oldest in growing steps, and then by halving.
  local live, dead, step = log.len, log.len + 1, 1
  while live > 0 and log.seen - newest(log, live) >= p[2] do
    live, dead, step = live - step, live, step * 2
  end
  live = math.max(live, 0)
  while dead - live > 1 do
    local rank = math.floor((live + dead) / 2)
    if log.seen - newest(log, rank) < p[2] then live = rank else dead = rank end
  end
  log.live, log.over = live, live == log.len and log.beyond or 0
end

-- Takes `cost` if it fits. The answer: verdict, how many entries count, the newest entry's age, the age of the entry that must
-- leave, and the time of this log. All entries that one call adds have the same time, so they are only counted here; `close`
-- writes them. After a charge one entry more than the limit may count: the cost of 0 waits until it leaves.
local function take(p, log, cost)
  if not log.seen then look(p, log) end
  local limit, live, age = p[1], log.live + log.over + log.added, 0
  local fits = cost <= limit and live + cost <= limit
  if not fits and cost <= limit then
    local rank = limit - cost + 1 - log.added
    if rank > 0 then age = log.seen - newest(log, math.min(rank, log.live)) end
  end
  local answer = struct.pack('<I1I4I8I8I8', fits and 1 or 0, math.min(live, 4294967295), log.newest_age, age, log.seen)
  if fits and cost > 0 then log.added, log.newest_age = log.added + cost, 0 end
  return fits, answer
end

-- How many more entries fit.
local function room(p, log)
  if not log.seen then look(p, log) end
  return p[1] - log.live - log.over - log.added
end

-- The entries that count, oldest first.
local function kept(log)
  if log.live == 0 then return '' end
  local whole = log.value or redis.call('GET', log.key)
  local first = (log.next - log.live) % log.slots
  local upto = math.min(first + log.live, log.slots)
  local older = string.sub(whole, log.head + 8 * first + 1, log.head + 8 * upto)
  return older .. string.sub(whole, log.head + 1, log.head + 8 * (log.live - (upto - first)))
end

-- The entries that count as a ring that starts at slot 0, with room for `needed` in total.
local function grow(p, log, needed)
  local slots = math.min(p[1] + 1, math.max(needed, 8, math.ceil(log.slots * 1.5)))
  local body = kept(log) .. string.rep('\0', 8 * (slots - log.live))
  log.slots, log.next, log.head = slots, log.live % slots, HEAD
  return body
end

-- Writes the entries that were taken.
local function close(p, log)
  local cost = log.added
  if not cost or cost == 0 then return end
  local times, upto = string.rep(struct.pack('<I8', log.seen), cost), pxat(log.seen + p[2])
  if p[3] == 0 and log.over == 0 then
    redis.call('SET', log.key, kept(log) .. times, 'PXAT', upto)
    return
  end
  local len = log.live + cost
  if len > log.slots or not log.ring then
    local body = grow(p, log, len)
    redis.call('SET', log.key, string.rep('\0', HEAD) .. body, 'PXAT', upto)
  end
  put(log, log.next, times)
  redis.call('SETRANGE', log.key, 0, struct.pack('<I4I4I8I4', (log.next + cost) % log.slots, len, log.seen, log.over))
  redis.call('PEXPIREAT', log.key, upto)
end
-- Charges units that were used, even if they do not fit. Of the oldest entries beyond one more than the limit, only the number
-- is kept: they leave before anything fits in any case.
local function charge(p, log, spent)
  if not log.seen then look(p, log) end
  local all = log.live + log.over + log.added + spent
  log.added = math.min(log.added + spent, p[1] + 1)
  log.live = math.min(log.live, p[1] + 1 - log.added)
  log.over = math.min(all - log.added - log.live, 4294967295)
  if log.added > 0 then log.newest_age = 0 end
end
return {open = open, look = look, room = room, take = take, close = close, charge = charge, newest = newest, put = put}
