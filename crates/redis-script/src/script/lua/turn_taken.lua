-- The reply of turn.lua, for each line: 1 if the first ticket is of the group that asks, 2 if its cost was taken; its number and its cost; the
-- cost up to the group's own first one; and the number of all tickets. What was taken is kept with the answer.
fit = fit and admitted
local states = {}
for n, line in ipairs(joined) do
  states[n] = struct.pack('<I1', fit and 2 or line.own) .. string.sub(line.ticket, 9) .. struct.pack('<I8I8', line.ahead, line.count)
  if fit then
    lines.remove(line, line.ticket)
    lines.close(stay, line)
  end
end
local state = table.concat(states)
local answer = fit and state .. kept_answer() or ''
redis.call('SET', answer_key, struct.pack('<I8', asked) .. answer, 'PX', '60000')
return {time[1], time[2], replies, state}
