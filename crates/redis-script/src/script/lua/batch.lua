-- Many requests of one limit, each decided separately. ARGV: the limit's numbers; one cost for all keys, or the costs of each
-- key in order; and then the number of costs of each key. After the quick loop, `rest` has the keys that it has not decided, and `fresh` the
-- ends of the reply for those that had no value.
-- The caller computes the decisions from the reply.
local p = {read(#ARGV[1] == 48 and '<dddddd' or '<dddddddd', ARGV[1])}
local size = prepare(p)
local keys, costs, counts, at = KEYS, ARGV[2], ARGV[3], 1
local same = #costs == 8 and counts == '' and read('<I8', costs)
p.looks = same == 0
local rule, sub = p.rule, string.sub
local tail = rule and -#rule
for n = 1, #(rest or keys) do
  local i = rest and rest[n] or n
  local there = states[i]
  local before, as_is = there, true
  if there and (went_back or #there ~= size or rule and sub(there, tail) ~= rule) then before, as_is = own(p, there, size, adopt, keys[i]) end
  local ours = before ~= nil
  local value, head, was
  if same then
    if ours and same > 0 then value, head, was = decide(p, before, same) end
  else
    for _ = 1, read('<I4', counts, 4 * i - 3) do
      local cost = read('<I8', costs, at)
      if ours and cost > 0 then
        local after, newer, older = decide(p, value or before, cost)
        if after then value, head, was = whole(value or before, after), newer, was or older end
      end
      at = at + 8
    end
  end
  if not ours then
    has_none(states, i, size, foreign(there))
  elseif value and not put(p, keys[i], there, as_is and value or whole(before, value), head, as_is and there and was) then
    has_none(states, i, size, WRONG_TYPE)
  elseif not before then
    has_none(states, i, size, NONE)
  else
    states[i] = before
  end
end
for n = 1, #(fresh or '') do without[#without + 1] = fresh[n] end
return reply(states, size)
