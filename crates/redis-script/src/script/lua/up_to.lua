-- Lowers the cost of a joint decision, which all its limits have in common, to what they all admit; joint.lua decides then.
-- Without anything left it denies a cost of 1. The reply has the cost as its fourth part.
local count, granted = #KEYS, tonumber(ARGV[3])
local asked = granted
for i = 1, count do granted = math.max(math.min(granted, fits(i, granted, true)), 0) end
local cost = string.format('%.0f', math.max(granted, math.min(asked, 1)))
for i = 1, count do
  if not kind_of(i).beside then ARGV[3 * i] = cost end
end
