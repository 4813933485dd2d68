-- Permits: the newest moment that was given to a holder (8 bytes), and 16 bytes for each permit, in the order of expiry: its
-- holder's name, and the time from which the hold counts. Each holder gets a unique moment, if necessary a microsecond after
-- the previous one. That moment is the holder's name, so a repeated release or renewal has the same effect as one. numbers:
-- limit, hold
local HEAD, SIZE = 8, 16

-- The time of the permit of this rank; 1 is the oldest.
local function time_at(held, rank)
  if rank > held.len then return held.added[rank - held.len] end
  return (struct.unpack('<I8', held.value, HEAD + SIZE * rank - 7))
end

-- Finds how many permits have expired. Usually it is the same number as before.
local function look(p, held)
  local gone, live = held.gone, held.len + #held.added + 1
  if gone + 1 < live and held.seen - time_at(held, gone + 1) < p[2] then return end
  while live - gone > 1 do
    local rank = math.floor((gone + live) / 2)
    if held.seen - time_at(held, rank) < p[2] then live = rank else gone = rank end
  end
  held.gone = gone
end

-- The value from the permit of this rank on.
local function from(held, rank) return string.sub(held.value, HEAD + SIZE * rank - 15) end

-- Writes only these permits.
local function write(p, held, permits)
  local upto = held.last
  if permits ~= '' then
    upto = math.max(upto, struct.unpack('<I8', permits, #permits - 7) + p[2])
  elseif upto < now then
    redis.call('DEL', held.key)
    return
  end
  redis.call('SET', held.key, struct.pack('<I8', held.last) .. permits, 'PXAT', pxat(upto))
end

local function moment(held)
  held.last = math.max(now, held.last + 1)
  -- A holder from the clock's future may have this name.
  while went_back and string.find(held.value, struct.pack('<I8', held.last), HEAD + 1, true) do
    held.last = held.last + 1
  end
  return held.last
end

-- Moves times from the clock's future to now, a microsecond between two holders, because the permits of one holder have the
-- same time. Their names stay.
local function from_future(p, held)
  local rank, bound, before, permits = held.len, now + 1, nil, {}
  while rank > 0 do
    local at = HEAD + SIZE * rank - 15
    local name, time = struct.unpack('<I8I8', held.value, at)
    if time < bound then break end
    if time ~= before then before, bound = time, bound - 1 end
    permits[rank] = struct.pack('<I8I8', name, bound)
    rank = rank - 1
  end
  held.last = now
  held.value = struct.pack('<I8', now) .. string.sub(held.value, HEAD + 1, HEAD + SIZE * rank)
    .. table.concat(permits, '', rank + 1, held.len)
  redis.call('SET', held.key, held.value, 'PXAT', pxat(now + p[2]))
end

-- The key's permits, or what is wrong with the key.
local function open(p, key)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then
    if string.find(value.err, 'WRONGTYPE', 1, true) then return nil, 1 end
    return nil, value
  end
  local held = {key = key, value = value or '', len = 0, gone = 0, added = {}, last = 0}
  if value then
    held.len = (#value - HEAD) / SIZE
    if held.len < 0 or held.len % 1 > 0 then return nil, foreign(value) end
    held.last = struct.unpack('<I8', value)
    if held.last >= 2 ^ 53 then return nil, foreign(value) end
    if went_back and held.last > now then from_future(p, held) end
  end
  -- Time never runs backwards.
  held.seen = math.max(now, held.last)
  return held
end

-- Takes `cost` if it fits, and returns the answer in the form of `log.lua`. For an admission, the time in it is the holder's
-- name.
local function take(p, held, cost)
  look(p, held)
  local limit, all, age, newest_age = p[1], held.len + #held.added, 0, 0
  local live = all - held.gone
  local fits = cost <= limit and (cost == 0 or live + cost <= limit)
  if live > 0 then newest_age = held.seen - time_at(held, all) end
  if not fits and cost <= limit then age = held.seen - time_at(held, all - limit + cost) end
  if fits and cost > 0 then
    held.seen = moment(held)
    for _ = 1, cost do held.added[#held.added + 1] = held.seen end
  end
  return fits, struct.pack('<I1I4I8I8I8', fits and 1 or 0, live, newest_age, age, held.seen)
end

-- How many more permits there are.
local function room(p, held)
  look(p, held)
  return math.max(p[1] - held.len - #held.added + held.gone, 0)
end

-- Writes the permits that were taken.
local function close(p, held)
  if #held.added == 0 then return end
  local permits, before, text = {from(held, math.min(held.gone, held.len) + 1)}, nil, nil
  for n, name in ipairs(held.added) do
    if name ~= before then before, text = name, struct.pack('<I8I8', name, name) end
    permits[n + 1] = text
  end
  write(p, held, table.concat(permits))
end

-- Gives back or renews the permits of the holder with this name (8 bytes). Returns whether there were any.
local function settle(p, held, name, renew)
  look(p, held)
  local first = HEAD + SIZE * held.gone + 1
  local at = string.find(held.value, name, first, true)
  -- The name's bytes can also occur by chance at another offset.
  while at and (at - first) % SIZE > 0 do at = string.find(held.value, name, at + 1, true) end
  if not at then return false end
  -- A holder's permits have the same time, so they are adjacent.
  local rank = (at - HEAD - 1) / SIZE + 1
  local time, last, beyond = time_at(held, rank), rank, held.len + 1
  while beyond - last > 1 do
    local middle = math.floor((last + beyond) / 2)
    if time_at(held, middle) == time then last = middle else beyond = middle end
  end
  local permits = string.sub(held.value, first, at - 1) .. from(held, last + 1)
  if renew then permits = permits .. string.rep(name .. struct.pack('<I8', moment(held)), last - rank + 1) end
  write(p, held, permits)
  return true
end

-- Gives back up to this many permits, those that expire first.
local function give_back(p, held, cost)
  look(p, held)
  write(p, held, from(held, math.min(held.gone + cost, held.len) + 1))
end
return {open = open, room = room, take = take, close = close, settle = settle, give_back = give_back}
