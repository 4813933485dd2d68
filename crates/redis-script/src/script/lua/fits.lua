-- The largest part of a cost that a limit of a joint decision admits; below 0 if it denies a cost of 0, too. KEYS and ARGV: as in joint.lua. Nothing is taken. A limit
-- admits less of a larger cost, never more, so the part is found by halving. What is wrong with a key is left to joint.lua. With
-- `at_once` a cost above the limit does not wait for its rest.
local function kind_of(i) return algorithm(string.lower(ARGV[3 * i - 2])) end
local commons = {}
wants_more = {}
local function fits(i, most, at_once)
  local kind, numbers = kind_of(i), ARGV[3 * i - 1]
  local p = {struct.unpack(#numbers == 48 and '<dddddd' or '<dddddddd', numbers)}
  p.looks = true
  if kind.line then
    local line = most > 0 and kind.line(p, KEYS[i])
    return line and line.count > 0 and -1 or most
  elseif kind.common then
    commons[ARGV[3 * i]] = kind.common(p, KEYS[i])
    return most
  elseif kind.tenant then
    local common = commons[ARGV[3 * i]]
    local tenant = common and kind.tenant(p, KEYS[i], common)
    local part = tenant and kind.request.room(common, tenant, most) or most
    -- A refusal of all counts, so that the tenant's share grows.
    wants_more[i] = part < most
    return part
  elseif kind.denied then
    local block = kind.open(p, KEYS[i])
    return block and block.ends > now and -1 or most
  end
  if kind.open then
    local log = kind.open(p, KEYS[i])
    return log and math.min(most, kind.room(p, log)) or most
  end
  local size, value = kind.prepare(p), redis.pcall('GET', KEYS[i])
  if at_once then p.waits = nil end
  if type(value) == 'table' then return most end
  value = own(p, value, size, kind.adopt, KEYS[i])
  if value == nil or kind.decide(p, value, most) then return most end
  if most == 0 then return -1 end
  local part, beyond = 0, most
  while beyond - part > 1 do
    local cost = math.floor((part + beyond) / 2)
    if kind.decide(p, value, cost) then part = cost else beyond = cost end
  end
  return part
end
