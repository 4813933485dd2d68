-- Charges a log, whether the cost fits or not. ARGV: the limit's numbers, the cost. KEYS[2] and the reply as in change.lua, but
-- with the answer to a look instead of the value.
local p = {struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1])}
local cost = tonumber(ARGV[2])
local log, wrong = log_of.open(p, KEYS[1])
if type(wrong) == 'table' then return wrong end
if log and cost > 0 and (not KEYS[2] or redis.call('SET', KEYS[2], '', 'PX', 10000, 'NX')) then
  log_of.charge(p, log, cost)
  log_of.close(p, log)
  log = log_of.open(p, KEYS[1])
end
if not log then return {time[1], time[2], {wrong}} end
local _, answer = log_of.take(p, log, 0)
return {time[1], time[2], {answer}}
