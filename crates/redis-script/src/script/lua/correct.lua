-- Ends a reservation: corrects its limits to what was used, as `tidegate_core::Policy::settle` and
-- `tidegate_limiter::Estimates::settle` do. KEYS: the limits' keys, a key for each that says when it was last reset, and the
-- record and the open reservations of reserve.lua. ARGV: for each limit the kind, its numbers, the actual cost (or the unused one, after
-- a `-`), its position in the record, and where its units count now; then `settle`, or `expire` to release the units of these limits if
-- the time is over; and the id. The reply: the time, and the estimate of each limit. With `units` the estimate of the only limit is in
-- place of the id, and the third key tells a repeated call.
local count = (#KEYS - 2) / 2
local record, open = KEYS[2 * count + 1], KEYS[2 * count + 2]
local act, id = ARGV[5 * count + 1], ARGV[5 * count + 2]
local expires, recorded = act == 'expire', act ~= 'units'
local known = recorded and redis.call('HMGET', record, 'd', 's', 't') or {'', false}
if not recorded and not redis.call('SET', record, '', 'PX', 10000, 'NX') then return {time[1], time[2], 'done'} end
if not known[1] or known[2] == 'd' or expires and (known[2] or now < tonumber(known[1])) then
  if not known[1] or known[2] then redis.call('ZREM', open, id) end
  return {time[1], time[2], known[1] and 'done' or 'unknown'}
end
local function head(value) return (struct.unpack('<I7', value)) end
-- What gives units back to the key and charges it, and writes the result.
local function of_value(kind, p, key)
  local size, there = kind.prepare(p), redis.pcall('GET', key)
  if type(there) == 'table' then return end
  local before, as_is = own(p, there, size, kind.adopt, key)
  if before == nil then return end
  local value = before
  local function give_back(taken, units)
    if not value then return end
    if kind.give_back then
      value = kind.give_back(p, value, taken, units)
    elseif not recorded and head(value) == taken then
      -- A leaky bucket's start time returns only if no other was given out behind it: `taken` is the bucket's time after it.
      value = kind.refund(p, value, units)
    end
  end
  local function charge(more)
    value = kind.charge(p, value, more)
  end
  local function close()
    if value ~= before then put(p, key, there, value, head(value), as_is and there and head(there)) end
  end
  return give_back, charge, close
end
local function of_log(kind, p, key)
  local log = kind.open(p, key)
  if not log then return end
  local function give_back(taken, units)
    give_back_to(p, log, taken, units)
    log = kind.open(p, key)
  end
  local function charge(more) kind.charge(p, log, more) end
  local function close() kind.close(p, log) end
  return give_back, charge, close
end
-- All permits of a holder go back, for any use.
local function of_permits(kind, p, key)
  local held = kind.open(p, key)
  if not held then return end
  local function give_back(taken)
    kind.settle(p, held, struct.pack('<I8', taken), false)
    held = kind.open(p, key)
  end
  return give_back, function() end, function() end
end
local totals = {}
for i = 1, count do
  local letter, numbers, actual, field, place = unpack(ARGV, 5 * i - 4, 5 * i)
  local kind, p = algorithm(letter), {struct.unpack('<' .. string.rep('d', #numbers / 8), numbers)}
  local estimates, total = recorded and (redis.call('HGET', record, field) or '') or id, 0
  for at = 1, #estimates, 24 do total = total + struct.unpack('<I8', estimates, at) end
  if string.sub(actual, 1, 1) == '-' then actual = math.max(total - string.sub(actual, 2), 0) end
  local permits = kind.settle
  local of = permits and of_permits or kind.open and of_log or of_value
  local give_back, charge, close = of(kind, p, KEYS[i])
  if give_back then
    local unused, reset = math.max(total - actual, 0), tonumber(redis.call('GET', KEYS[count + i]) or 0)
    for at = #estimates - 23, 1, -24 do
      local cost, taken = struct.unpack('<I8I8', estimates, at)
      local back = math.min(unused, cost)
      unused = unused - back
      local there = taken > reset and string.sub(estimates, at + 16, at + 23) == place
      if permits and cost > 0 or back > 0 and there then give_back(taken, back) end
    end
    if actual - total > 0 then charge(actual - total) end
    close()
  end
  if expires then redis.call('HSET', record, field, '') end
  totals[i] = total
end
if not recorded then return {time[1], time[2], totals} end
redis.call('HSET', record, 's', expires and 'e' or 'd')
redis.call('PEXPIREAT', record, pxat(now + math.max(known[3], 60000000)))
redis.call('ZREM', open, id)
return {time[1], time[2], totals}
