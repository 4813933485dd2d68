-- Many requests of one limit that keeps a log. ARGV as in batch.lua. The reply: the time, and for each key the answers of
-- `take` in order, or 1 for a key of another type, 2 for a value that is not of this limit.
local p = {struct.unpack('<dddddd', ARGV[1])}
local same = #ARGV[2] == 8 and ARGV[3] == '' and struct.unpack('<I8', ARGV[2])
local replies, at = {}, 1
for i = 1, #KEYS do
  local log, wrong = log_of.open(p, KEYS[i])
  if type(wrong) == 'table' then return wrong end
  local answers = {}
  for n = 1, same and 1 or struct.unpack('<I4', ARGV[3], 4 * i - 3) do
    local cost = same or struct.unpack('<I8', ARGV[2], at)
    at = at + 8
    if log then
      local _, answer = log_of.take(p, log, cost)
      answers[n] = answer
    end
  end
  if log then log_of.close(p, log) end
  replies[i] = log and table.concat(answers) or wrong
end
return {time[1], time[2], replies}
