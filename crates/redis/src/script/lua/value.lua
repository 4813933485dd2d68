-- How values are written, and what the reply has of them. A value begins with its head: a time, in seven bytes.
local call, read = redis.call, struct.unpack

-- A key's end is told by the head alone, whoever writes: the moment from which the value means nothing (p.lasts after the
-- head), in whole steps, and one and a half steps more. So most writes leave the end where it is, and the value is written in
-- place, as it is too where only the end changes: that spares Redis half of the work. `value` may be the beginning of one
-- whose rest stays, if the head does. Without `was` the value is written whole.
local STEP = 4000000
-- Heads of `whose` values, from and below, that have one end; and that end, once it was wanted.
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
  -- MGET takes a key of another type for none.
  return call('SET', key, value, 'PXAT', ends, 'NX')
end

-- The value as one of this limit's, and whether it is so as it stands: where only the limit's numbers have changed since it
-- was written, it may have another form, from which the algorithm's `adopt` makes its own.
local function own(p, before, size, adopt)
  if not before or #before == size then return before, true end
  return adopt and adopt(p, before) or nil, false
end

-- The whole value, where `after` may be the beginning of one.
local function whole(before, after)
  return before and after .. string.sub(before, #after + 1) or after
end

-- The reply is one string: the time (8 bytes), the size of a value (4), each key's value as it was before, and then each key
-- that has none: which (4 bytes, from 0), and why (1).
local NONE, WRONG_TYPE, NOT_OURS = 0, 1, 2
local without = {}
local function has_none(states, i, size, why)
  states[i] = string.rep('\0', size)
  without[#without + 1] = struct.pack('<I4I1', i - 1, why)
end
local function reply(states, size)
  return struct.pack('<I8I4', now, size) .. table.concat(states) .. table.concat(without)
end
