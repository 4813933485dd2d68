-- The line of a key, next to a limit of any algorithm: a sorted set. Tickets have a place above 0, and are 24 bytes: the number of
-- the server's line (8), of the ticket in it (8) and its cost (8). All else has a negative score: `c`, the cost of all tickets plus 1;
-- and for each server's line `a` and its number, the time until which its tickets stay. numbers: how long they stay without it
local call = redis.call
local function text(number) return string.format('%.0f', number) end
local function remove(line, ticket)
  if call('ZREM', line.key, ticket) == 0 then return end
  line.count, line.cost = line.count - 1, line.cost - struct.unpack('<I8', ticket, 17)
end

-- The key's line without the tickets of servers that have not asked for too long, or what is wrong with the key.
local function open(p, key)
  local rest = redis.pcall('ZRANGE', key, '-inf', '(0', 'BYSCORE', 'WITHSCORES')
  if rest.err then
    if string.find(rest.err, 'WRONGTYPE', 1, true) then return nil, 1 end
    return nil, rest
  end
  local line, dead = {key = key, cost = 0, count = 0, alive = {}}, nil
  for at = 1, #rest, 2 do
    local name, number = rest[at], -tonumber(rest[at + 1])
    local id = string.sub(name, 2)
    if id == '' then
      line.cost = number - 1
    elseif number <= now then
      dead = dead or {}
      dead[id] = name
    else
      line.alive[id] = true
      -- An end from the clock's future would hold until the clock gets there.
      if went_back and number > now + p[1] then call('ZADD', key, text(-now - p[1]), name) end
    end
  end
  if #rest == 0 then return line end
  line.count = call('ZCARD', key) - #rest / 2
  if dead then
    for _, ticket in ipairs(call('ZRANGE', key, '1', '+inf', 'BYSCORE')) do
      if dead[string.sub(ticket, 1, 8)] then remove(line, ticket) end
    end
    for _, name in pairs(dead) do call('ZREM', key, name) end
    call('ZADD', key, text(-line.cost - 1), 'c')
  end
  return line
end

-- Lets tickets of a server's line stay, and adds some at the end.
local function join(p, line, id, tickets)
  call('ZADD', line.key, text(-now - p[1]), 'a' .. id)
  local last = call('ZRANGE', line.key, '-1', '-1', 'WITHSCORES')
  local place = math.max(tonumber(last[2]), 0)
  for _, ticket in ipairs(tickets) do
    if call('ZADD', line.key, 'NX', text(place + 1), ticket) == 1 then
      place = place + 1
      line.count, line.cost = line.count + 1, line.cost + struct.unpack('<I8', ticket, 17)
    end
  end
end

-- Writes what has changed.
local function close(p, line)
  if line.count == 0 then return call('DEL', line.key) end
  call('ZADD', line.key, text(-line.cost - 1), 'c')
  call('PEXPIREAT', line.key, pxat(now + p[1]))
end
return {beside = true, line = open, join = join, remove = remove, close = close}
