-- A server asks whether it is its line's turn, and the decision on the first ticket of all lines. KEYS: as in joint.lua, the line, and the
-- answer to the last call. ARGV: as in joint.lua, with the ticket's cost to be found here; then `take`, or `look` if nothing is to
-- be taken; the number of line.lua; the number of the server's line; that of the call; the tickets to add and those to remove (16 bytes
-- each); and `all` if these are all that the line has. A repeated call takes nothing, and replies with the answer of the first.
local count, first = #KEYS - 2, 3 * (#KEYS - 2)
local act, numbers, id, asked, joins, leaves, scope = unpack(ARGV, first + 1, first + 7)
local before = redis.call('GET', KEYS[count + 2])
if before and tonumber(asked) <= struct.unpack('<I8', before) then
  -- One that took nothing may be asked again, unless a later one was answered.
  if #before > 8 or tonumber(asked) < struct.unpack('<I8', before) then return {time[1], time[2], before} end
end
local lines, stay = algorithms.q, {struct.unpack('<dddddd', numbers)}
local line, wrong = lines.line(stay, KEYS[count + 1])
if not line then return type(wrong) == 'table' and wrong or {time[1], time[2], 'wrong'} end
if scope ~= 'all' and not line.alive[id] then return {time[1], time[2], 'lost'} end
lines.join(stay, line, id, joins)
for at = 1, #leaves, 16 do lines.remove(line, id .. string.sub(leaves, at, at + 15)) end
-- The cost of the first tickets up to the first one of this line.
local ticket, ahead, is_own = nil, 0, false
for at, other in ipairs(line.count > 0 and redis.call('ZRANGE', KEYS[count + 1], '1', '+inf', 'BYSCORE', 'LIMIT', '0', '64') or {}) do
  ticket, ahead = ticket or other, ahead + struct.unpack('<I8', other, 17)
  if string.sub(other, 1, 8) == id then
    is_own = at == 1
    break
  end
end
lines.close(stay, line)
if not ticket then
  redis.call('SET', KEYS[count + 2], struct.pack('<I8', asked), 'PX', '60000')
  return {time[1], time[2], 'empty'}
end
local cost, fit = struct.unpack('<I8', ticket, 17), is_own and act == 'take'
for i = 1, count do
  local is_block = kind_of(i).beside
  if not is_block then ARGV[3 * i] = string.format('%.0f', cost) end
  fit = fit and fits(i, cost) == cost
end
ARGV[first + 1] = fit and 'take' or 'look'
