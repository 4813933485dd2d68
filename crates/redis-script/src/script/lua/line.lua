-- The line of a key, next to a limit of any algorithm: a sorted set. Tickets are 24 bytes: the number of the server's line (8), of the
-- ticket in it (8) and its cost (8). Their rank is above 0: the time of their arrival, and a step for each level below the highest priority.
-- All else has a negative score: `c`, the cost of all tickets plus 1; `last`, the last arrival; and for each server's line `a` and its
-- number, the time until which its tickets stay. numbers: how long they stay without it; the step; and the priority of a request that is
-- going to join plus 1, or 0
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
  local line, dead = {key = key, cost = 0, count = 0, last = 0, alive = {}}, nil
  for at = 1, #rest, 2 do
    local name, number = rest[at], -tonumber(rest[at + 1])
    local id = string.sub(name, 2)
    if id == '' then
      line.cost = number - 1
    elseif name == 'last' then
      line.last = number
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

-- The rank of a request of a priority that comes after all those that came until `last`, and when it comes.
local function rank(p, last, priority)
  local arrival = math.max(now, last + 1)
  return arrival + (9 - priority) * p[2], arrival
end

-- The cost in front of a request that is going to join: if others are behind its place, of at most 64 tickets.
local function ahead(p, line)
  local place = text(rank(p, line.last, p[3] - 1))
  if call('ZCOUNT', line.key, '(' .. place, '+inf') == 0 then return line.cost end
  local cost = 0
  for _, ticket in ipairs(call('ZRANGE', line.key, '1', place, 'BYSCORE', 'LIMIT', '0', '64')) do
    cost = cost + struct.unpack('<I8', ticket, 17)
  end
  return cost
end

-- The key's line as `open` reads it. Of a request that is going to join, the cost is that in front of it.
local function look(p, key)
  local line, wrong = open(p, key)
  if line and p[3] > 0 and line.count > 0 then line.cost = ahead(p, line) end
  return line, wrong
end

-- Lets tickets of a server's line stay, and adds some, which come after all those that came until `last`.
local function join(p, line, id, last, tickets)
  call('ZADD', line.key, text(-now - p[1]), 'a' .. id)
  for _, ticket in ipairs(tickets) do
    local place
    place, last = rank(p, last, ticket.priority)
    if call('ZADD', line.key, 'NX', text(place), ticket.name) == 1 then
      line.count, line.cost, line.last = line.count + 1, line.cost + struct.unpack('<I8', ticket.name, 17), last
    end
  end
end

-- Writes what has changed.
local function close(p, line)
  if line.count == 0 then return call('DEL', line.key) end
  call('ZADD', line.key, text(-line.cost - 1), 'c', text(-line.last), 'last')
  call('PEXPIREAT', line.key, pxat(now + p[1]))
end
return {beside = true, line = look, join = join, remove = remove, close = close}
