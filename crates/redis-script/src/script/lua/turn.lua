-- A server asks whether it is its group's turn, and the decision on the first tickets. A group waits in the lines of one or several keys, with the
-- same tickets in each. KEYS: as in joint.lua, the lines, and the answer to the last call. ARGV: as in joint.lua, with the tickets'
-- costs to be found here; then `take`, or `look` if nothing is to be taken; the number of line.lua; the number of the group; that of
-- the call; the tickets to add and those to remove (8 bytes, one for the priority, and 8 for the cost in each line); `all` if these are all that the group has;
-- and for each limit the line it is of, from 1, two bytes each. A repeated call takes nothing, and replies with the answer of the first.
local count = math.floor((#ARGV - 8) / 3)
local asked_lines, line_of = #KEYS - count - 1, {}
for at = 1, #ARGV[3 * count + 8], 2 do line_of[#line_of + 1] = struct.unpack('<I2', ARGV[3 * count + 8], at) end
local first, answer_key = 3 * count, KEYS[#KEYS]
local act, numbers, id, asked, joins, leaves, scope = unpack(ARGV, first + 1, first + 7)
local before = redis.call('GET', answer_key)
if before and tonumber(asked) <= struct.unpack('<I8', before) then
  -- One that took nothing may be asked again, unless a later one was answered.
  if #before > 8 or tonumber(asked) < struct.unpack('<I8', before) then return {time[1], time[2], before} end
end
local lines, stay = algorithm('q'), {struct.unpack('<dddddd', numbers)}
local joined, size, last = {}, 9 + 8 * asked_lines, 0
for n = 1, asked_lines do
  local line, wrong = lines.line(stay, KEYS[count + n])
  if not line then return type(wrong) == 'table' and wrong or {time[1], time[2], 'wrong'} end
  if scope ~= 'all' and not line.alive[id] then return {time[1], time[2], 'lost'} end
  -- The same in all lines, so that tickets have one order in all of them.
  joined[n], last = line, math.max(last, line.last)
end
-- A group's tickets for the line `n`.
local function tickets_in(text, n)
  local tickets = {}
  for at = 1, #text, size do
    local name = id .. string.sub(text, at, at + 7) .. string.sub(text, at + 8 * n + 1, at + 8 * n + 8)
    tickets[#tickets + 1] = {name = name, priority = string.byte(text, at + 8)}
  end
  return tickets
end
local is_own, is_empty = true, false
for n, line in ipairs(joined) do
  lines.join(stay, line, id, last, tickets_in(joins, n))
  for _, ticket in ipairs(tickets_in(leaves, n)) do lines.remove(line, ticket.name) end
  -- The cost of the first tickets up to the first one of this group.
  line.ahead, line.own = 0, 0
  for at, other in ipairs(line.count > 0 and redis.call('ZRANGE', KEYS[count + n], '1', '+inf', 'BYSCORE', 'LIMIT', '0', '64') or {}) do
    line.ticket, line.ahead = line.ticket or other, line.ahead + struct.unpack('<I8', other, 17)
    if string.sub(other, 1, 8) == id then
      line.own = at == 1 and 1 or 0
      break
    end
  end
  lines.close(stay, line)
  is_own, is_empty = is_own and line.own == 1, is_empty or not line.ticket
end
if is_empty then
  redis.call('SET', answer_key, struct.pack('<I8', asked), 'PX', '60000')
  return {time[1], time[2], 'empty'}
end
local fit = is_own and act == 'take'
for i = 1, count do
  local is_block = kind_of(i).beside
  local line = joined[line_of[is_block and tonumber(ARGV[3 * i]) or i]]
  local cost = struct.unpack('<I8', line.ticket, 17)
  if not is_block then ARGV[3 * i] = string.format('%.0f', cost) end
  fit = fit and fits(i, cost) == cost
end
ARGV[first + 1] = fit and 'take' or 'look'
