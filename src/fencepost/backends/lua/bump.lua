-- Raise the counter to a token; it never goes down.
-- KEYS: counter
-- ARGV: token
-- Compares decimal text, by length and then by bytes: Lua's numbers are exact only below 2^53.
local last, token = redis.call('GET', KEYS[1]) or '0', ARGV[1]
if #last < #token or (#last == #token and last < token) then redis.call('SET', KEYS[1], token) end
return 1
