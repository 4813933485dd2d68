-- The shares of tenants, next to a limit of any algorithm, as `tidegate_core::fair` has them: which tenant is served first. The
-- limit itself decides how much there is. All spans are in microseconds, with fractions.
--
-- The common state: `now`, virtual time, the level, the epoch, the weights of those who asked and of those whom their share refused (in this
-- epoch and in the one before), the tenant that asked last, the epoch in which another one did, and when this state began. Its
-- numbers: a unit of the average rate, the span in which an unused limit fills, the reserve, the horizon.
-- A tenant: the ends of its debts (its share's in virtual time, its guarantee's and its ceiling's), the epochs in which it asked and was
-- refused last, the units taken and charged later (both fading) and taken in advance, and when the common state began. Its
-- numbers: weight, guarantee (0 for none), ceiling (1 for none), and a number that identifies it.
local COMMON, TENANT = '<ddddddddddd', '<ddddddddd'
local ALONE_AFTER, FADE = 64, 0.9
local max, min, floor = math.max, math.min, math.floor

local function read(key, size)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then
    if string.find(value.err, 'WRONGTYPE', 1, true) then return nil, 1 end
    return nil, value
  end
  if value and #value ~= size then return nil, foreign(value) end
  return value
end

-- The common state at now, or what is wrong with its key.
local function open_common(p, key)
  local value, wrong = read(key, 88)
  if wrong then return nil, wrong end
  local c = {key = key, unit = p[1], full = p[2], reserve = p[3], horizon = p[4]}
  local length = c.horizon / 4
  if value then
    c.now, c.virtual, c.level, c.epoch, c.active, c.active_before, c.refused, c.refused_before, c.asker, c.crowded, c.born =
      struct.unpack(COMMON, value)
    if went_back then c.now = min(c.now, now) end
  else
    c.now, c.virtual, c.level, c.active, c.active_before, c.refused, c.refused_before = now, 0, c.full, 0, 0, 0, 0
    c.epoch, c.asker, c.crowded, c.born = floor(now / length), 0, 0, now
  end
  -- Another rule's epochs, or those of a clock that went back, have other numbers.
  local epoch = floor(c.now / length)
  if epoch ~= c.epoch then
    c.crowded, c.epoch = c.crowded > 0 and max(epoch + 1 - max(c.epoch + 1 - c.crowded, 0), 1) or 0, epoch
  end
  local passed = max(now - c.now, 0)
  c.now = c.now + passed
  epoch = floor(c.now / length)
  if epoch > c.epoch then
    local keeps = epoch == c.epoch + 1
    c.active, c.active_before = 0, keeps and c.active or 0
    c.refused, c.refused_before = 0, keeps and c.refused or 0
    c.epoch = epoch
  end
  c.level = min(c.level + passed, c.full)
  local spare, refused = c.level - c.reserve, max(c.refused, c.refused_before)
  if spare > 0 then
    local paces = passed / min(c.horizon / 32, c.full / 8)
    if refused > 0 then
      c.virtual = c.virtual + spare * min(paces, 1) / refused
    else
      c.virtual = c.virtual + spare * paces / max(c.active, c.active_before, 1)
    end
  end
  return c
end

local function refused_weight(c) return max(c.refused, c.refused_before) end
local function is_alone(c) return c.crowded == 0 or c.epoch + 1 - c.crowded > ALONE_AFTER end
local function credit(c, t) return c.horizon / 2 / max(c.active, c.active_before, t.weight) end
local function faded(c, t) return FADE ^ min(max(c.epoch + 1 - t.asked, 0), 64) end

-- A tenant, or what is wrong with its key. It has not asked yet.
local function open_tenant(p, key, c)
  local value, wrong = read(key, 72)
  if wrong then return nil, wrong end
  local t = {key = key, weight = p[1], guarantee = p[2] > 0 and p[2], ceiling = p[3] < 1 and p[3], name = p[4]}
  local born
  if value then
    t.share, t.guaranteed, t.ceiled, t.asked, t.refused, t.taken, t.charged, t.advance, born = struct.unpack(TENANT, value)
  end
  -- A tenant of a former common state counts as new: its virtual time was another one.
  if born ~= c.born then
    t.share, t.guaranteed, t.ceiled, t.asked, t.refused, t.taken, t.charged, t.advance = 0, 0, 0, 0, 0, 0, 0, 0
  end
  if went_back then
    t.guaranteed, t.ceiled = min(t.guaranteed, c.now + c.horizon), min(t.ceiled, c.now + c.horizon)
  end
  return t
end

-- Counts the tenant as active.
local function meet(c, t)
  local epoch = c.epoch + 1
  if t.asked ~= epoch then
    local part = faded(c, t)
    t.taken, t.charged, t.asked = t.taken * part, t.charged * part, epoch
    c.active = c.active + t.weight
  end
  if c.asker ~= t.name then
    if c.asker ~= 0 then c.crowded = epoch end
    c.asker = t.name
  end
end

-- What a bucket lacks for a cost, or for as much as it ever has.
local function lacks(c, ends, time, cost, fraction, most)
  return max(max(ends - time, 0) + min(cost * c.unit / fraction, most) - most, 0)
end
-- The end of a bucket's debt after a cost. With `most`, the debt does not grow beyond it.
local function add(c, ends, time, cost, fraction, most)
  local debt = max(ends - time, 0)
  if most then cost = min(cost, max(most - debt, 0) / c.unit * fraction) end
  return time + debt + cost * c.unit / fraction
end

-- How the shares admit a cost of a tenant that has asked, and the units expected to be charged later; or what its share, its guarantee
-- and its ceiling lack. Nothing changes.
local function verdict(c, t, cost)
  if t.ceiling then
    local ceiling = lacks(c, t.ceiled, c.now, cost, t.ceiling, c.horizon / 8)
    if ceiling > 0 then return nil, 0, ceiling, nil, true end
  end
  local more = t.taken > 0 and t.charged > 0 and cost * t.charged / t.taken or 0
  local expected = cost + floor(more)
  local share = lacks(c, t.share, c.virtual, expected, t.weight, credit(c, t))
  if share == 0 then return 'share', more end
  local guarantee = t.guarantee and lacks(c, t.guaranteed, c.now, expected, t.guarantee, c.horizon / 2)
  if guarantee == 0 then return 'guarantee', more end
  local is_idle = refused_weight(c) == 0 and c.level - cost * c.unit >= (c.reserve + c.full) / 2
  if is_alone(c) or is_idle then return 'idle', more end
  return nil, more, share, guarantee, false
end

-- Counts a refusal by the share, and returns the time until virtual time has advanced by what is lacking.
local function refuse(c, t, share)
  if t.refused ~= c.epoch + 1 then
    t.refused, c.refused = c.epoch + 1, c.refused + t.weight
  end
  local span, pace = share * refused_weight(c), min(c.horizon / 32, c.full / 8)
  local level = c.reserve + span
  if level <= c.full then return max(level - c.level, pace) end
  return max(c.full - c.level, c.horizon / 2) + span * pace / (c.full - c.reserve)
end

local function take(c, t, cost, way, more)
  local all = cost + more
  c.level = c.level - all * c.unit
  t.taken, t.advance = t.taken + cost, t.advance + more
  local most = way == 'guarantee' and 2 * credit(c, t) or way == 'idle' and credit(c, t) or nil
  t.share = add(c, t.share, c.virtual, all, t.weight, most)
  if t.guarantee then
    t.guaranteed = add(c, t.guaranteed, c.now, all, t.guarantee, way ~= 'guarantee' and c.horizon / 2 or nil)
  end
  if t.ceiling then t.ceiled = add(c, t.ceiled, c.now, cost, t.ceiling) end
end

-- Takes a cost that is known only after the work.
local function charge(c, t, cost)
  t.charged = t.charged + cost
  local known = min(cost, t.advance)
  t.advance = t.advance - known
  local new = cost - known
  c.level = c.level - new * c.unit
  local most = (is_alone(c) or refused_weight(c) == 0 and c.level >= c.reserve) and credit(c, t) or nil
  t.share = add(c, t.share, c.virtual, new, t.weight, most)
  if t.guarantee then t.guaranteed = add(c, t.guaranteed, c.now, new, t.guarantee) end
  if t.ceiling then t.ceiled = add(c, t.ceiled, c.now, cost, t.ceiling) end
end

-- Returns units that were taken and not used.
local function refund(c, t, cost)
  c.level = min(c.level + cost * c.unit, c.full)
  t.taken = max(t.taken - cost, 0)
  t.share = t.share - cost * c.unit / t.weight
  if t.guarantee then t.guaranteed = t.guaranteed - cost * c.unit / t.guarantee end
  if t.ceiling then t.ceiled = t.ceiled - cost * c.unit / t.ceiling end
end

-- A tenant's debts are of a horizon at most, but for charges; without requests it is soon level with the others again.
local function close(c, t)
  redis.call('SET', c.key, struct.pack(COMMON, c.now, c.virtual, c.level, c.epoch, c.active, c.active_before, c.refused, c.refused_before,
    c.asker, c.crowded, c.born), 'PXAT', pxat(c.now + 20 * c.horizon))
  redis.call('SET', t.key, struct.pack(TENANT, t.share, t.guaranteed, t.ceiled, t.asked, t.refused, t.taken, t.charged, t.advance, c.born),
    'PXAT', pxat(c.now + 4 * c.horizon))
end

-- A tenant's part of the limit while all that asked lately want more than they get, and the part that it has used lately.
local function standing(c, t)
  local part = t.weight / max(c.active, c.active_before, t.weight)
  part = min(max(part, t.guarantee or 0), t.ceiling or 1)
  local length = c.horizon / 4
  local units = (t.taken + t.charged) * faded(c, t)
  return part, units * c.unit / (length * (FADE / (1 - FADE) + c.now / length % 1))
end

-- The request of a tenant with a cost, as a part of a joint decision. Its reply: whether it was refused and whether by its ceiling (1 each),
-- the time after which its share admits it (8, rounded up), and the tenant's part and what it has used (8 each).
local Request = {}
function Request.ask(c, t, cost, wants_more)
  local ask = {c = c, t = t, cost = cost}
  local refused, by_ceiling, wait = 0, 0, 0
  if cost > 0 then
    meet(c, t)
    local way, more, lacking, guarantee, ceiling = verdict(c, t, cost)
    ask.way, ask.more = way, more
    if wants_more or not way and not ceiling then wait = refuse(c, t, lacking or 0) end
    if not way then
      refused, by_ceiling = 1, ceiling and 1 or 0
      wait = ceiling and lacking or guarantee and min(guarantee, wait) or wait
    end
  end
  ask.refused = refused == 1
  local part, used = standing(c, t)
  ask.reply = struct.pack('<BBI8dd', refused, by_ceiling, ask.refused and floor(wait) + 2 or 0, part, used)
  return ask
end
-- The end of a request: `admits` says whether the limit itself admits, `taken` whether the cost was taken.
function Request.close(ask, admits, taken)
  if ask.cost == 0 then return end
  if taken then
    take(ask.c, ask.t, ask.cost, ask.way, ask.more)
  elseif not ask.refused and not admits then
    -- Nothing is spare, even if the level is high.
    ask.c.level = min(ask.c.level, ask.c.reserve)
  end
  close(ask.c, ask.t)
end
-- The largest part of a cost that a tenant's share admits; below 0 if it has to wait for the smallest.
function Request.room(c, t, most)
  if most == 0 then return 0 end
  meet(c, t)
  if verdict(c, t, most) then return most end
  local part, beyond = 0, most
  while beyond - part > 1 do
    local cost = floor((part + beyond) / 2)
    if verdict(c, t, cost) then part = cost else beyond = cost end
  end
  return part
end
local common = {beside = true, common = open_common}
local tenant = {beside = true, tenant = open_tenant, request = Request}
return common, tenant, charge, refund, close
