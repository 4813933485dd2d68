-- Changes what a key has used by a cost: refunds up to that much of the newest units, or charges it, whether it fits or not.
-- ARGV: the limit's numbers, the cost. KEYS[2], if present, identifies this request: if it arrives twice, only one change is
-- made. The reply has the value after the change; 1 means a key of another type, 2 a value that is not of this limit.
local p = {struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1])}
local size, cost = prepare(p), tonumber(ARGV[2])
p.looks = cost == 0
local there = redis.pcall('GET', KEYS[1])
if type(there) == 'table' then
  if not string.find(there.err, 'WRONGTYPE', 1, true) then return there end
  return {time[1], time[2], {1}}
end
local value, as_is = own(p, there, size, adopt, KEYS[1])
if value == nil then return {time[1], time[2], {foreign(there)}} end
if (value or charges) and cost > 0 and (not KEYS[2] or redis.call('SET', KEYS[2], '', 'PX', 10000, 'NX')) then
  local after = change(p, value, cost)
  if after ~= value then
    local function head(v) return (read('<I7', v)) end
    put(p, KEYS[1], there, after, head(after), as_is and there and head(there))
    value = after
  end
end
return {time[1], time[2], {value}}
