-- Refunds up to a cost of a key's permits, oldest first. ARGV, KEYS[2] and the reply as in change.lua, but with the answer to
-- a look instead of the value.
local p = {struct.unpack('<dddddd', ARGV[1])}
local cost = tonumber(ARGV[2])
local held, wrong = log_of.open(p, KEYS[1])
if type(wrong) == 'table' then return wrong end
if held and held.len > 0 and cost > 0 and (not KEYS[2] or redis.call('SET', KEYS[2], '', 'PX', 10000, 'NX')) then
  log_of.give_back(p, held, cost)
  held = log_of.open(p, KEYS[1])
end
if not held then return {time[1], time[2], {wrong}} end
local _, answer = log_of.take(p, held, 0)
return {time[1], time[2], {answer}}
