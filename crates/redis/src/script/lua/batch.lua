-- Many requests of one limit, each by itself. ARGV: the limit's numbers; one cost for all keys, or the costs of each
-- key in turn; and then how many are each key's. The reply has each key's value as it was before: whoever asked
-- computes the decisions from it. 1 stands for a key of another type, 2 for a value that is not of this limit.
local p = {read('<dddddd', ARGV[1])}
local size = prepare(p)
local same = #ARGV[2] == 4 and ARGV[3] == '' and read('<I4', ARGV[2])
local keys, costs, counts, at = KEYS, ARGV[2], ARGV[3], 1
local states = call('MGET', unpack(keys))
for i = 1, #keys do
  local before = states[i]
  local ours = not before or #before == size
  local value, head, was
  if same then
    if ours then value, head, was = decide(p, before, same) end
  else
    for _ = 1, read('<I4', counts, 4 * i - 3) do
      if ours then
        local after, newer, older = decide(p, value or before, (read('<I4', costs, at)))
        if after then value, head, was = after, newer, was or older end
      end
      at = at + 4
    end
  end
  if not ours then
    states[i] = 2
  elseif value and not put(p, keys[i], before, value, head, was) then
    states[i] = 1
  end
end
return {time[1], time[2], states}
