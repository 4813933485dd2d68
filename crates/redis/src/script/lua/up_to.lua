-- Lowers the cost of a joint decision, which all its limits have in common, to what they all admit. KEYS and ARGV: as in
-- joint.lua, which decides then; without anything left it denies a cost of 1. A limit admits less of a larger cost, never more,
-- so the cost is found by halving. What is wrong with a key is left to joint.lua. The reply has the cost as its fourth part.
local count, granted = #KEYS, tonumber(ARGV[3])
local asked = granted
for i = 1, count do
  local kind, numbers = algorithms[ARGV[3 * i - 2]], ARGV[3 * i - 1]
  local p = {struct.unpack(#numbers == 48 and '<dddddd' or '<dddddddd', numbers)}
  p.looks = true
  if kind.denied then
    local block = kind.open(p, KEYS[i])
    if block and block.ends > now then granted = 0 end
  elseif kind.open then
    local log = kind.open(p, KEYS[i])
    if log then granted = math.max(math.min(granted, kind.room(p, log)), 0) end
  else
    local size, value = kind.prepare(p), redis.pcall('GET', KEYS[i])
    if type(value) ~= 'table' then
      value = own(p, value, size, kind.adopt, KEYS[i])
      if value ~= nil and not kind.decide(p, value, granted) then
        local fits, beyond = 0, granted
        while beyond - fits > 1 do
          local cost = math.floor((fits + beyond) / 2)
          if kind.decide(p, value, cost) then fits = cost else beyond = cost end
        end
        granted = fits
      end
    end
  end
end
local cost = string.format('%.0f', math.max(granted, math.min(asked, 1)))
for i = 1, count do
  if not algorithms[ARGV[3 * i - 2]].denied then ARGV[3 * i] = cost end
end
