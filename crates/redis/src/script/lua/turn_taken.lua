-- The reply of turn.lua: 1 if the first ticket is of the line that asks, 2 if its cost was taken; its number and its cost; the cost up to the
-- line's own first one; and the number of all tickets. What was taken is kept with the answer.
fit = fit and admitted
local state = struct.pack('<I1', fit and 2 or is_own and 1 or 0) .. string.sub(ticket, 9) .. struct.pack('<I8I8', ahead, line.count)
if fit then
  lines.remove(line, ticket)
  lines.close(stay, line)
end
local answer = fit and state .. kept_answer() or ''
redis.call('SET', KEYS[count + 2], struct.pack('<I8', asked) .. answer, 'PX', '60000')
return {time[1], time[2], replies, state}
