-- seen(lock, queue): {value, ms left or -1, queue entries}, and for a shared lock the holder:token of each sharer;
-- false if the lock is not held.
local function seen(lock, queue)
    local value = redis.call('GET', lock)
    if not value then return false end
    local found = {value, redis.call('PTTL', lock), redis.call('ZRANGE', queue, 0, -1)}
    if value == ':0' then
        local now, owners = clock(), {}
        local shares = redis.call('ZRANGE', lock .. '\31shares', 0, -1, 'WITHSCORES')
        for index = 1, #shares, 2 do
            if tonumber(shares[index + 1]) > now then owners[#owners + 1] = shares[index] end
        end
        if #owners == 0 then return false end
        found[2] = math.ceil((shares[#shares] - now) / 1000)
        found[4] = owners
    end
    return found
end
