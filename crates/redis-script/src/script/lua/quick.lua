-- Most batches ask for one cost of each key, and each key has a value in the usual form of its limit, or none. They are decided here,
-- without making the functions for all other cases: as in the algorithm's file, and written as in value.lua. `rest` gets the other keys.
-- Rust puts the algorithm's two parts in place of the two names.
if #ARGV[1] == 48 and #ARGV[2] == 8 and ARGV[3] == '' and not went_back then
  local call, pack, read = redis.call, struct.pack, struct.unpack
  local cost = read('<I8', ARGV[2])
  -- A value that decides as none does, and how long after its head it means something.
  local none, lasts
  local step = 4000000
PREPARE
  -- All heads are later than that of `none`, even by a step.
  if none and cost > 0 and now > lasts + step then
    local keys, size, from, below, ends = KEYS, #none, 0, 0, nil
    rest, fresh = {}, {}
    for i = 1, #keys do
      local there, value, head, was = states[i]
      if there and #there ~= size then
        rest[#rest + 1] = i
      else
DECIDE
        -- No head moves back.
        if value then
          if there then call('SETRANGE', keys[i], '0', value) end
          if was < from or head >= below then
            local first = head - (head + lasts) % step
            if first ~= from then from, below, ends = first, first + step, nil end
            if was < from then
              ends = ends or pxat(from + lasts + 1.5 * step)
              if there then
                call('PEXPIREAT', keys[i], ends)
              else
                local is_new = call('SET', keys[i], value, 'PXAT', ends, 'NX')
                states[i] = none
                fresh[#fresh + 1] = pack('<I4I1', i - 1, is_new and 0 or 1)
              end
            end
          end
        end
      end
    end
    if not rest[1] then return pack('<I8I4', now, size) .. table.concat(states) .. table.concat(fresh) end
  end
end
