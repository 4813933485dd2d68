-- An interval of whole microseconds, and values of this limit's rule.
local burst, interval, fraction, capacity = read('<dddd', ARGV[1])
local span, latest, rule = cost * interval, now + capacity, pack('<I7I4', interval, burst)
local newest, text
if fraction == 0 and cost <= burst then none, lasts = '\0\0\0\0\0\0\0' .. rule, 0 end
-- For each key:
local tat, of, units = read('<I7I7I4', there or none)
if of ~= interval or units ~= burst then
  rest[#rest + 1] = i
else
  local after = (tat > now and tat or now) + span
  if after <= latest then
    if after ~= newest then newest, text = after, pack('<I7', after) end
    value, head, was = there and text or text .. rule, after, tat
  end
end
