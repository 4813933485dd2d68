-- A joint decision that is safe to repeat. KEYS: the limits' keys, and the one with the answer of the first call. ARGV: as in
-- joint.lua, and then for how many milliseconds the answer is kept, and whether a denial is kept, too (`all`), or an admission only
-- (`admissions`). With `none` the call only looks for the first answer, and replies with an empty text if there is none. A repeated call takes nothing, and replies with the text that keep_answer.lua wrote.
local count = #KEYS - 1
local first = redis.call('GET', KEYS[count + 1])
if first then return {time[1], time[2], first} end
if ARGV[3 * count + 2] == 'none' then return {time[1], time[2], ''} end
