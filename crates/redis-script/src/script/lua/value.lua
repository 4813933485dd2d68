-- How values are written and packed into the reply. A value begins with its head: a time in seven bytes.
local call, read = redis.call, struct.unpack

-- Only the head determines a key's expiry, for every writer: the moment from which the value means nothing (p.lasts after
-- the head), rounded up to whole steps, plus one and a half steps. So most writes leave the TTL as it is, and write the value
-- in place; if only the TTL changes, the value is also written in place. That saves Redis half of the work. `value` may be the
-- beginning of a value whose rest stays, if the head does. Without `was` the value is written whole.
local STEP = 4000000
-- Heads of `whose` values that lead to the same expiry lie from `from` to below `below`; `ends` is that expiry, once it was
-- needed.
local whose, from, below, ends
local function put(p, key, before, value, head, was)
  if p ~= whose or head < from or head >= below then
    from = head - (head + p.lasts) % STEP
    whose, below, ends = p, from + STEP, nil
  end
  if was and was >= from and was < below then return call('SETRANGE', key, '0', value) end
  ends = ends or pxat(from + p.lasts + 1.5 * STEP)
  if was then
    call('SETRANGE', key, '0', value)
    return call('PEXPIREAT', key, ends)
  end
  if before then return call('SET', key, value, 'PXAT', ends) end
  -- MGET returns nil for a key of another type.
  return call('SET', key, value, 'PXAT', ends, 'NX')
end

-- Whether a value has this limit's form, and the rule that wrote it is the same (token buckets).
local function is_own(p, value, size)
  return #value == size and (not p.rule or string.sub(value, -#p.rule) == p.rule)
end

-- The value in this limit's form, and whether it was already in it. If only the limit's numbers have changed since it was
-- written, it may have another form, which the algorithm's `adopt` converts. If the value means something else by the new
-- numbers, it is written at once, unless this is a look: otherwise the former numbers would apply until the next admission. A
-- value from the clock's future is moved to now, as if its units had just been used, and written: otherwise it would deny
-- until the clock gets there.
local function own(p, before, size, adopt, key)
  local value, as_is = before, true
  if before and not is_own(p, before, size) then
    local moved
    value, as_is = nil, false
    if adopt then value, moved = adopt(p, before) end
    if moved and not p.looks then
      put(p, key, before, value, (read('<I7', value)))
      as_is = true
    end
  end
  if went_back and value and p.moved_to_now then
    local recent = p.moved_to_now(value)
    if recent ~= value then
      value, as_is = recent, true
      put(p, key, before, value, (read('<I7', value)))
    end
  elseif went_back and value then
    local latest = p.from and p.begin or p.aligned and now - now % p.aligned or now + (p.ahead or 0)
    if read('<I7', value) > latest then
      -- A bucket's fraction is part of its head.
      local rest = p.ahead and string.rep('\0', size - 7 - #(p.rule or '')) .. (p.rule or '') or string.sub(value, 8)
      value, as_is = struct.pack('<I7', latest) .. rest, true
      put(p, key, before, value, latest)
    end
  end
  return value, as_is
end

-- The whole value, if `after` may be only the beginning of one.
local function whole(before, after)
  return before and after .. string.sub(before, #after + 1) or after
end

-- The reply is one string: the time (8 bytes), the size of a value (4), each key's value before the call, and then for each
-- key without a value its index (4 bytes, from 0) and the reason (1).
local NONE, WRONG_TYPE = 0, 1
local without = {}
local function has_none(states, i, size, why)
  states[i] = string.rep('\0', size)
  without[#without + 1] = struct.pack('<I4I1', i - 1, why)
end
local function reply(states, size)
  return struct.pack('<I8I4', now, size) .. table.concat(states) .. table.concat(without)
end
