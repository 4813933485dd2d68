-- Many lease requests of nodes for a limit that keeps a log. ARGV as in lease.lua, the reply as in batch_log.lua. The answer
-- to a request is that of `take` for its cost and the units ahead together (leased), or for its cost (reported).
local p = {struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1])}
local leased = ARGV[2] == 'l'

local count = #ARGV[4] / 4
if KEYS[count + 1] and not redis.call('SET', KEYS[count + 1], '', 'PX', 10000, 'NX') then
  return redis.error_reply('REPEATED this call has run before')
end
local replies, at = {}, 1
for i = 1, count do
  local log, wrong = log_of.open(p, KEYS[i])
  if type(wrong) == 'table' then return wrong end
  local answers = {}
  for n = 1, struct.unpack('<I4', ARGV[4], 4 * i - 3) do
    if log then
      local cost, ahead, spent, back, taken = struct.unpack('<I8I4I4I4I8', ARGV[3], at)
      if back > 0 then
        log_of.close(p, log)
        if log.added then log = log_of.open(p, KEYS[i]) end
        give_back_to(p, log, taken, back)
        log = log_of.open(p, KEYS[i])
      end
      if not log.seen then log_of.look(p, log) end
      if spent > 0 then log_of.charge(p, log, spent) end
      local units = 0
      if leased then
        local room = p[1] - log.live - log.over - log.added
        units = math.min(ahead, math.floor(math.max(room - cost, 0) / 4))
      end
      local _, answer = log_of.take(p, log, cost + units)
      answers[n] = answer
    end
    at = at + 28
  end
  if log then log_of.close(p, log) end
  replies[i] = log and table.concat(answers) or wrong
end
return {time[1], time[2], replies}
