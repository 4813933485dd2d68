-- Gives back up to a cost of what a key took last. ARGV: the limit's numbers, the cost. KEYS[2], where there is one, stands
-- for this request: one that arrives twice gives back once. The reply has the value as it is then; 1 stands for a key of
-- another type, 2 for a value that is not of this limit.
local p = {struct.unpack('<dddddd', ARGV[1])}
local size, cost = prepare(p), tonumber(ARGV[2])
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
  value = 1
elseif value and #value ~= size then
  value = 2
elseif value and cost > 0 and (not KEYS[2] or redis.call('SET', KEYS[2], '', 'PX', 10000, 'NX')) then
  local after = refund(p, value, cost)
  if after ~= value then
    -- It is as good as new no later than before.
    redis.call('SET', KEYS[1], after, 'XX', 'KEEPTTL')
    value = after
  end
end
return {time[1], time[2], {value}}
