-- remember(counter, token): raise the counter to a token; it never goes down.
-- Compares decimal text, by length and then by bytes: Lua's numbers are exact only below 2^53.
local function remember(counter, token)
    local last = redis.call('GET', counter) or '0'
    if #last < #token or (#last == #token and last < token) then redis.call('SET', counter, token) end
end
